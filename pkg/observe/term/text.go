// SPDX-License-Identifier: Apache-2.0

package term

import (
	"fmt"
	"strings"
	"unicode"
)

// Some joins the first names and counts the others.
func Some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Clean replaces characters of an untrusted name that cannot be printed, which a terminal would
// interpret.
func Clean(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}
