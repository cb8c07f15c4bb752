// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/pkg/control/show"
)

// isTerminal reports whether out is a terminal with cursor control.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// colored reports whether output to out has colours: on a terminal, unless NO_COLOR or WG_COLOR_MODE overrides that.
func colored(out io.Writer) bool { return colorMode(isTerminal(out)) }

// colorMode is colored for an output that is already known to be a terminal or not.
func colorMode(terminal bool) bool {
	return show.UseColor(os.Getenv("WG_COLOR_MODE"), os.Getenv("NO_COLOR") != "", terminal)
}

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
