// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// printable returns text for a terminal: lines with characters that a terminal could act on, which names of devices and
// programs may have, are quoted as in Go.
func printable(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		acts := func(r rune) bool { return r != '\t' && !strconv.IsPrint(r) }
		if strings.ContainsFunc(line, acts) || !utf8.ValidString(line) {
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

// printing makes what a command returns printable.
func printing(err error) error {
	if err == nil {
		return nil
	}
	return printableError{err}
}
