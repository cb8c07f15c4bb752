// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
)

// errnoPrefix begins the line that ends every answer.
const errnoPrefix = "errno="

// reply is the errno line that ends every answer.
type reply struct {
	seen   bool
	errno  syscall.Errno
	reason []string // lines of the error's text, if the daemon sent it
}

// set parses the errno, with either sign: wireguard-go sends -22, and wg(8) accepts both.
func (r *reply) set(value string) error {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return protocolError("want a number, got %q", value)
	}
	r.seen, r.errno = true, syscall.Errno(max(n, -n))
	return nil
}

// err returns the daemon's error, nil only after errno=0.
func (r *reply) err() error {
	switch {
	case !r.seen:
		return protocolError("answer without errno")
	case r.errno != 0 && len(r.reason) > 0:
		return &Error{Errno: r.errno, Err: errors.New(strings.Join(r.reason, "\n"))}
	case r.errno != 0:
		return &Error{Errno: r.errno}
	}
	return nil
}

// maxReason is the number of characters of a line in appendReason.
const maxReason = 1000

// appendReason writes the text of an error, which precedes its errno. It is for ropewalk's own operations: wg(8) expects the errno first.
func appendReason(b []byte, err error) []byte {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if line != "" {
			b = fmt.Appendf(b, "%s=%.*s\n", keyReason, maxReason, line)
		}
	}
	return b
}

// appendReply writes the end of an answer, the errno negated as wg(8) expects.
func appendReply(b []byte, errno syscall.Errno) []byte {
	b = append(b, errnoPrefix...)
	b = strconv.AppendInt(b, -int64(errno), 10)
	return append(b, "\n\n"...)
}

// readAnswer reads an answer to its end, and passes the lines of its body to set, which may be nil.
// The error is the daemon's *Error when its errno is not 0.
func readAnswer(lines *lineReader, set func(key, value string) error) error {
	var r reply
	for {
		key, value, ok, err := lines.pair()
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err == nil && !ok:
			return r.err()
		case err != nil:
		case key == "errno":
			err = r.set(value)
		case key == keyReason:
			r.reason = append(r.reason, value)
		case set != nil:
			err = set(key, value)
		}
		if err != nil {
			return withPosition(err, lines.line, key)
		}
	}
}
