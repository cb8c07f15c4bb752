// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// printable returns text that is safe for a terminal. Lines with control characters, which names
// of devices and programs may contain, are quoted as in Go. Tabs are left.
func printable(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		control := func(r rune) bool { return r != '\t' && !strconv.IsPrint(r) }
		if strings.ContainsFunc(line, control) || !utf8.ValidString(line) {
			quoted := strconv.Quote(line)
			lines[i] = quoted[1 : len(quoted)-1]
		}
	}
	return strings.Join(lines, "\n")
}

// printableError is an error whose text is printable.
type printableError struct{ error }

func (e printableError) Error() string { return printable(e.error.Error()) }

func (e printableError) Unwrap() error { return e.error }

// printing makes the text of the error of a command printable.
func printing(err error) error {
	if err == nil {
		return nil
	}
	return printableError{err}
}
