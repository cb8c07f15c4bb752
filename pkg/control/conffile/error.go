// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"strings"
)

// LineError is a mistake in a file. Its text never holds the value of a secret key.
type LineError struct {
	File  string // as given to Parse
	Line  int    // from 1
	Key   string // as documented, or as in the file when it is unknown; empty for none, and when it might be a secret
	Fault string // the mistake, where Want is not enough
	Want  string // the expected value, if known
	Got   string // the value in the file, quoted; empty when it might be a secret
}

// Error returns text such as `wg0.conf:7: PersistentKeepalive: want 0-65535 or "off", got "x"`.
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

// maxErrors limits the errors about one file, which may not be a configuration at all.
const maxErrors = 20

// Error lists the mistakes in a file, at most 20. errors.As finds each *LineError.
type Error []*LineError

// Error returns one line for each mistake.
func (e Error) Error() string {
	texts := make([]string, len(e))
	for i, line := range e {
		texts[i] = line.Error()
	}
	return strings.Join(texts, "\n")
}

// Unwrap returns the mistakes.
func (e Error) Unwrap() []error {
	errs := make([]error, len(e))
	for i, line := range e {
		errs[i] = line
	}
	return errs
}
