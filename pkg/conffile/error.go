// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"strings"
)

// LineError is one thing wrong with a file. Its text never holds the value of a secret key.
type LineError struct {
	File string // as given to Parse
	Line int    // from 1
	Key  string // as ropewalk spells it; empty when the line has none that is known
	Want string // what was expected
	Got  string // what was found, quoted; empty when it might be secret
}

// Error is "wg0.conf:7: PersistentKeepalive: want 0-65535 or "off", got "x"".
func (e *LineError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString("want " + e.Want)
	if e.Got != "" {
		b.WriteString(", got " + e.Got)
	}
	return b.String()
}

// maxErrors bounds what is said about one file, which may not be a configuration at all.
const maxErrors = 20

// Error is everything wrong with a file, at most 20 lines of it. errors.As finds each *LineError.
type Error []*LineError

// Error gives each fault a line.
func (e Error) Error() string {
	texts := make([]string, len(e))
	for i, line := range e {
		texts[i] = line.Error()
	}
	return strings.Join(texts, "\n")
}

// Unwrap returns the faults.
func (e Error) Unwrap() []error {
	errs := make([]error, len(e))
	for i, line := range e {
		errs[i] = line
	}
	return errs
}
