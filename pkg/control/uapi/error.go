// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// errnoUnknown is wireguard-go's number for an error without an errno (ipc.IpcErrorUnknown).
const errnoUnknown = syscall.Errno(55)

// Error is the failure of an operation. errors.Is finds its errno: errors.Is(err, syscall.EADDRINUSE).
// Its text never holds the value of a key.
type Error struct {
	Errno syscall.Errno // positive; the protocol carries it negated
	Line  int           // of the request, from 1; 0 when the error is not in a line
	Key   string        // empty when the error is not in a key
	Err   error         // the cause; nil in most errors received by a Client

	fatal bool // the rest of the connection cannot be parsed
}

// Error returns the line, the key and the cause, as far as they are known.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, "%s: ", e.Key)
	}
	switch {
	case e.Err != nil:
		b.WriteString(e.Err.Error())
	case e.Errno == errnoUnknown:
		b.WriteString("the daemon reported an error without a reason")
	default:
		b.WriteString(e.Errno.Error())
	}
	return b.String()
}

// Unwrap returns the errno and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Errno}
	}
	return []error{e.Errno, e.Err}
}

// errnoOf returns the errno that a client sees for an error of a Handler or of the parser; 0 for nil.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Errno > 0 {
		return e.Errno
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno > 0 {
		return errno
	}
	return errnoUnknown
}

func invalidError(format string, args ...any) *Error {
	return &Error{Errno: unix.EINVAL, Err: fmt.Errorf(format, args...)}
}

func protocolError(format string, args ...any) *Error {
	return &Error{Errno: unix.EPROTO, Err: fmt.Errorf(format, args...)}
}
