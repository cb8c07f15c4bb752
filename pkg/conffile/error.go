// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"strings"
)

// LineError is one thing wrong with a file. Its text never holds the value of a secret key.
type LineError struct {
	File  string // as given to Parse
	Line  int    // from 1
	Key   string // as ropewalk spells it, or as the file does when it is unknown; empty for none, and for what might be secret
	Fault string // what is wrong, where Want alone does not say it
	Want  string // what was expected, if anything in particular
	Got   string // what was found, quoted; empty when it might be secret
}

// Error is "wg0.conf:7: PersistentKeepalive: want 0-65535 or "off", got "x"".
func (e *LineError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	var parts []string
	if e.Fault != "" {
		parts = append(parts, e.Fault)
	}
	if e.Want != "" {
		parts = append(parts, "want "+e.Want)
	}
	if e.Got != "" {
		parts = append(parts, "got "+e.Got)
	}
	b.WriteString(strings.Join(parts, ", "))
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
