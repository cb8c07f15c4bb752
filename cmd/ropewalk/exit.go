// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
)

// Exit codes.
const (
	exitError       = 1
	exitUsage       = 2 // the command line is wrong
	exitFailed      = 3 // a check failed
	exitWarnings    = 4 // no check failed, but some warned
	exitUnreachable = 5 // no daemon answers for the interface
)

// usageError marks a mistake in the command line itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// codedError ends the command with a code of its own. What it wraps may be nil, for a command that has said all already.
type codedError struct {
	code int
	err  error
}

// Error is "" when there is nothing more to say.
func (e codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e codedError) Unwrap() error { return e.err }

// ExitCode is what the program ends with.
func (e codedError) ExitCode() int { return e.code }

// exitCode returns what the process exits with for an error that is not nil.
func exitCode(err error) int {
	if _, ok := errors.AsType[usageError](err); ok || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return exitError
}
