// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Server answers the clients of one device's socket.
type Server struct {
	Handler Handler
	Log     *slog.Logger   // failed operations, never their values; slog.Default() when nil
	Level   *slog.LevelVar // what the log operation reads and changes; nil for a level that is fixed
	Idle    time.Duration  // how long a client may take to its next request; 60 s when 0. To begin its first it has 5 s at most
	// TakeOver offers the device to who is at the other end, and returns nil when that has it, or has not taken it; nil: it is not
	// given away. Its error is an answer, so that nothing may have been written before it. The connection stays the Server's.
	TakeOver func(*net.UnixConn) error
	// Upgrade starts the program at path as the successor of this process, and returns when that has taken over, or has not, at the
	// latest soon after ctx, which is Serve's; answered is then called when the client knows. nil: none is started.
	Upgrade func(ctx context.Context, path string) (answered func(), err error)
}

// Serve answers clients until ctx ends. See Server.Serve.
func Serve(ctx context.Context, l net.Listener, h Handler) error {
	return (&Server{Handler: h}).Serve(ctx, l)
}

// Serve answers clients until ctx ends, then closes l and all connections, waits for the operations that run, and
// returns nil. It returns an error when l fails before.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		conn, err := accept(ctx, l)
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting a configuration client: %w", err)
		}
		clients.Go(func() {
			s.serveConn(ctx, conn)
			<-slots
		})
	}
}

// accept outlasts a shortage of descriptors or memory, which other parts of the process cause and end.
func accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	for {
		conn, err := l.Accept()
		if !slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) }) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(acceptPause):
		}
	}
}

// serveConn answers one client's operations, one after the other.
func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	lines := newLineReader(conn, 0)
	idle := s.Idle
	if idle == 0 {
		idle = idleTimeout
	}
	conn.SetReadDeadline(time.Now().Add(min(idle, firstTimeout)))
	if lines.await() != nil {
		return
	}
	for {
		lines.restart(maxRequest)
		conn.SetReadDeadline(time.Now().Add(idle))
		answer, more, answered := s.operation(ctx, lines, conn)
		if len(answer) == 0 {
			return
		}
		conn.SetWriteDeadline(time.Now().Add(replyTimeout))
		_, err := conn.Write(answer)
		if answered != nil {
			answered()
		}
		if err != nil || !more {
			return
		}
	}
}

// operation reads one operation, carries it out and returns the answer, which is empty when the client has gone. more
// says whether the connection can be used further, and answered, if set, is to be called once the client has the answer.
func (s *Server) operation(ctx context.Context, lines *lineReader, conn net.Conn) (answer []byte, more bool, answered func()) {
	op, err := lines.next()
	if isGone(err) {
		return nil, false, nil
	}
	var body []byte
	switch {
	case err != nil:
	case op == opUpgrade:
		answered, err = s.upgrade(ctx, lines, conn)
	case op == opTakeOver:
		err = s.takeOver(lines, conn)
	default:
		body, err = s.dispatch(op, lines)
	}
	if isGone(err) {
		return nil, false, nil
	}
	if err != nil {
		s.logger().Warn("configuration request refused", "operation", knownOp(op), "error", err)
		body = nil
	}
	return appendReply(body, errnoOf(err)), !isFatal(err), answered
}

// isGone reports an end of the stream, which nobody is left to hear about.
func isGone(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return err != nil && !ok
}

func isFatal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.fatal
}

// knownOp keeps what is not an operation, and might be a key, out of the log.
func knownOp(op string) string {
	switch op {
	case opGet, opSet, opStats, opLog, opTakeOver, opUpgrade:
		return op
	}
	return "unknown"
}

// dispatch returns an operation's answer. Errors are *Error, except those of the stream.
func (s *Server) dispatch(op string, lines *lineReader) ([]byte, error) {
	switch op {
	case opGet:
		return s.get(lines)
	case opSet:
		return nil, s.set(lines)
	case opStats:
		return s.stats(lines)
	case opLog:
		return s.log(lines)
	}
	return nil, &Error{Errno: unix.EPROTO, Line: 1, Err: errors.New("unknown operation"), fatal: true}
}

// set parses everything before it applies anything. A request that was cut off is not applied.
func (s *Server) set(lines *lineReader) error {
	dev, err := parseSet(lines)
	if err != nil {
		if isGone(err) || isFatal(err) {
			return err
		}
		return refuse(lines, err)
	}
	if !lines.ended {
		return io.ErrUnexpectedEOF
	}
	return wrapHandler(s.Handler.Configure(dev))
}

func (s *Server) get(lines *lineReader) ([]byte, error) {
	if err := wantEnd(lines); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err := WriteGet(&b, s.Handler.Status())
	return b.Bytes(), wrapHandler(err)
}

func (s *Server) stats(lines *lineReader) ([]byte, error) {
	if err := wantEnd(lines); err != nil {
		return nil, err
	}
	b, err := json.Marshal(s.Handler.Stats())
	return append(b, '\n'), wrapHandler(err)
}

// wantEnd reads the empty line after an operation without a body.
func wantEnd(lines *lineReader) error {
	rest, err := lines.next()
	if err == nil && rest != "" {
		return refuse(lines, &Error{Errno: unix.EINVAL, Line: lines.line, Err: errors.New("want an empty line")})
	}
	return err
}

// refuse reads the rest of a bad operation, so that the answer is err and the next operation is found.
func refuse(lines *lineReader, err error) error {
	if skipErr := lines.skip(); skipErr != nil {
		return skipErr
	}
	return err
}

// wrapHandler makes an *Error of a Handler's error.
func wrapHandler(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return &Error{Errno: errnoOf(err), Err: err}
}

func (s *Server) logger() *slog.Logger {
	if s.Log != nil {
		return s.Log
	}
	return slog.Default()
}
