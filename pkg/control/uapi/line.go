// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// lineReader reads the lines of one operation, and limits the size of a line and of the operation.
type lineReader struct {
	r     *bufio.Reader
	line  int    // number of the line just read, from 1
	left  int64  // bytes left of the operation's limit
	ended bool   // the empty line was read
	onEnd func() // called when the empty line was read; may be nil
}

func newLineReader(r io.Reader, limit int64) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, maxLine), left: limit}
}

// beginOperation begins the next operation of the same connection.
func (l *lineReader) beginOperation(limit int64) {
	l.line, l.left, l.ended = 0, limit, false
}

// waitReadable waits until there is something to read. It consumes nothing.
func (l *lineReader) waitReadable() error {
	_, err := l.r.Peek(1)
	return err
}

// next returns the next line without its newline, valid until the next call; an empty line ends the operation.
// A stream that stops within a line, even its last, is io.ErrUnexpectedEOF; between lines it is io.EOF.
func (l *lineReader) next() (string, error) {
	raw, err := l.r.ReadSlice('\n')
	l.line++
	l.left -= int64(len(raw))
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", l.tooBig(fmt.Errorf("line longer than %d bytes", maxLine-1))
	case errors.Is(err, io.EOF) && len(raw) > 0:
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	case l.left < 0:
		return "", l.tooBig(errors.New("request too long"))
	}
	l.ended = len(raw) == 1
	if l.ended && l.onEnd != nil {
		l.onEnd()
	}
	return string(raw[:len(raw)-1]), nil
}

// pair reads one key=value line; ok is false at the end of the operation.
func (l *lineReader) pair() (key, value string, ok bool, err error) {
	line, err := l.next()
	if err != nil || line == "" {
		return "", "", false, err
	}
	key, value, found := strings.Cut(line, "=")
	if !found {
		e := protocolError("want key=value")
		e.Line = l.line
		return "", "", false, e
	}
	return key, value, true, nil
}

// longLine returns the next line, which may be as long as the limit of the operation. The line is the caller's.
func (l *lineReader) longLine() ([]byte, error) {
	var line []byte
	for {
		part, err := l.r.ReadSlice('\n')
		l.left -= int64(len(part))
		if l.left < 0 {
			return nil, l.tooBig(errors.New("answer too long"))
		}
		line = append(line, part...)
		if err == nil {
			l.line++
			return line[:len(line)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// skip reads to the end of the operation, so that the connection stays usable after a bad line.
func (l *lineReader) skip() error {
	for !l.ended {
		if _, err := l.next(); err != nil {
			return err
		}
	}
	return nil
}

func (l *lineReader) tooBig(cause error) error {
	return &Error{Errno: unix.E2BIG, Line: l.line, Err: cause, fatal: true}
}
