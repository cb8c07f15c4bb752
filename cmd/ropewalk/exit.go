// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

// Exit codes.
const (
	exitError       = 1
	exitUsage       = 2 // the command line is wrong
	exitFailed      = 3 // a check failed
	exitWarnings    = 4 // no check failed, but some warned
	exitUnreachable = 5 // no such interface, or no daemon answers for it
)

// usageError marks a mistake in the command line itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// codedError is an error with its own exit code. err is nil if the command has already printed everything.
type codedError struct {
	code int
	err  error
}

// Error returns "" if there is nothing more to print.
func (e codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e codedError) Unwrap() error { return e.err }

// ExitCode returns the exit code of the process.
func (e codedError) ExitCode() int { return e.code }

// exitCode returns the exit code of the process for an error that is not nil. A hook's code passes
// through, as with wg-quick; a hook that a signal has ended has none. cobra has no type for
// unknown commands.
func exitCode(err error) int {
	if _, ok := errors.AsType[usageError](err); ok || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) && coded.ExitCode() >= 0 {
		return coded.ExitCode()
	}
	if errors.Is(err, quick.ErrNotWireGuard) || errors.Is(err, quick.ErrUnresponsive) {
		return exitUnreachable
	}
	return exitError
}
