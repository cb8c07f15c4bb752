// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
)

// names are the texts of a type's values, from 0 on.
type names []string

// of returns the text of a value.
func (n names) of(value int) string {
	if value < 0 || value >= len(n) {
		return "unknown"
	}
	return n[value]
}

// parseName returns the value with a text, in any case. The error does not quote the text.
func parseName[T ~uint8](n names, text string) (T, error) {
	i := slices.IndexFunc(n, func(name string) bool { return strings.EqualFold(name, text) })
	if i < 0 {
		last := len(n) - 1
		return 0, fmt.Errorf("want %s or %s", strings.Join(n[:last], ", "), n[last])
	}
	return T(i), nil
}
