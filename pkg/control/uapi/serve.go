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
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/ropewalk/ropewalk/pkg/netio/connlimit"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Server answers the clients of one device's socket.
type Server struct {
	Handler Handler
	Log     *slog.Logger   // failed operations, never their values; slog.Default() when nil
	Level   *slog.LevelVar // read and changed by the log operation; nil for a fixed level
	Idle    time.Duration  // until a client's next request; 60 s when 0. Its first request must begin within 5 s
	// Handover hands the device over to the process at the other end. It returns nil when that process has the device, and also when
	// it has not taken the device. An error is sent as the answer, so Handover must return one only before it writes to the connection,
	// which the Server closes. A nil Handover means that the operation is not supported.
	Handover func(*net.UnixConn) error
	// Flows returns the busiest flows, for json.Marshal. nil: the operation is not supported.
	Flows func() any
	// Probe sends a peer a message that it answers. ok is false if there is no such peer. nil: the operation is not supported.
	Probe func(noise.PublicKey) (report config.PeerProbe, ok bool)
	// Upgrade starts the program at path as the successor of this process. It returns when the successor has the device or has failed,
	// at the latest soon after the end of ctx, which is Serve's. The Server calls replied once the client has its answer. nil: the
	// operation is not supported.
	Upgrade func(ctx context.Context, path string) (replied func(), err error)

	failures rate.Sometimes // bounds the log messages about failed requests
	freeing  atomic.Bool    // memory will be returned soon
}

// Serve answers clients until ctx ends. See Server.Serve.
func Serve(ctx context.Context, l net.Listener, h Handler) error {
	return (&Server{Handler: h}).Serve(ctx, l)
}

// Serve answers clients until ctx ends, and then returns nil. Before it returns, it closes l and
// all connections, and waits for running operations and for clients to read their answers. It
// returns an error when l fails before.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	limit := connlimit.New(maxConns)
	s.failures = rate.Sometimes{First: failureLogs, Interval: failureLogInterval}
	for {
		conn, err := s.accept(ctx, l)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("accepting a configuration client: %w", err)
		}
		if err != nil {
			return nil
		}
		slot, err := limit.Add(ctx, conn)
		if err != nil { // ctx has ended
			conn.Close()
			return nil
		}
		clients.Go(func() {
			defer slot.Release()
			s.serveConn(ctx, conn, slot)
		})
	}
}

// accept retries while descriptors or memory are exhausted: other parts of the process use and release them.
func (s *Server) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	for {
		conn, err := l.Accept()
		if !slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) }) {
			return conn, err
		}
		s.failures.Do(func() { s.logger().Warn("accepting a client of the control socket failed, retrying", "error", err) })
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(acceptPause):
		}
	}
}

// serveConn answers one client's operations, one after the other.
func (s *Server) serveConn(ctx context.Context, conn net.Conn, slot *connlimit.Slot) {
	defer conn.Close()
	end := func() {
		conn.SetReadDeadline(time.Unix(1, 0)) // no further request
		conn.SetWriteDeadline(time.Now().Add(lastReplyTimeout))
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	lines := newLineReader(conn, 0)
	lines.onEnd = slot.Serve
	idle := s.Idle
	if idle == 0 {
		idle = idleTimeout
	}
	conn.SetReadDeadline(time.Now().Add(min(idle, firstTimeout)))
	if ctx.Err() != nil || lines.waitReadable() != nil {
		return
	}
	for {
		lines.beginOperation(maxRequest)
		conn.SetReadDeadline(time.Now().Add(idle))
		if ctx.Err() != nil { // the deadline replaces end's
			return
		}
		answer, more, replied := s.operation(ctx, lines, conn)
		if len(answer) == 0 {
			return
		}
		slot.Wait() // a client that does not read its answer also makes room for others
		conn.SetWriteDeadline(time.Now().Add(replyTimeout))
		if ctx.Err() != nil {
			end()
		}
		_, err := conn.Write(answer)
		if replied != nil {
			replied()
		}
		if err != nil || !more {
			return
		}
	}
}

// operation reads one operation, carries it out and returns the answer, which is empty when the client has disconnected.
// more reports whether the connection can be used further. The caller calls replied, if it is set, once the client has the answer.
func (s *Server) operation(ctx context.Context, lines *lineReader, conn net.Conn) (answer []byte, more bool, replied func()) {
	op, err := lines.next()
	if isDisconnected(err) {
		return nil, false, nil
	}
	var body []byte
	switch {
	case err != nil:
	case op == opUpgrade:
		replied, err = s.upgrade(ctx, lines, conn)
	case op == opHandover:
		err = s.handover(ctx, lines, conn)
	default:
		body, err = s.dispatch(op, lines)
	}
	if isDisconnected(err) {
		return nil, false, nil
	}
	if err != nil {
		s.failures.Do(func() {
			s.logger().Warn("request on the control socket failed", "operation", knownOp(op), "error", err)
		})
		body = nil
		if op == opUpgrade {
			body = appendReason(nil, err)
		}
		if maxRequest-lines.left > largeRequest {
			debug.FreeOSMemory()
		}
	}
	if err == nil && max(int64(len(body)), maxRequest-lines.left) > largeRequest {
		s.freeLater()
	}
	return appendReply(body, errnoOf(err)), !isFatal(err), replied
}

// freeLater returns the garbage of large requests and answers to the kernel, once for all within freeDelay.
func (s *Server) freeLater() {
	if s.freeing.CompareAndSwap(false, true) {
		time.AfterFunc(freeDelay, func() {
			s.freeing.Store(false)
			debug.FreeOSMemory()
		})
	}
}

// isDisconnected reports whether the stream has ended, so that there is no client to answer.
func isDisconnected(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return err != nil && !ok
}

func isFatal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.fatal
}

// knownOp replaces unknown operations, which might be keys, in the log. It omits the value of the others, and gives a handover its name.
func knownOp(op string) string {
	switch op {
	case opGet, opSet, opStats, opLog, opFlows, opProbe, opUpgrade:
		return strings.TrimSuffix(op, "=1")
	case opHandover:
		return "handover"
	}
	return "unknown"
}

// dispatch returns an operation's answer. Errors are *Error, except errors of the stream.
func (s *Server) dispatch(op string, lines *lineReader) ([]byte, error) {
	switch op {
	case opGet:
		return s.get(lines)
	case opSet:
		return nil, s.set(lines)
	case opStats:
		return marshal(lines, s.Handler.Stats)
	case opFlows:
		return s.flows(lines)
	case opProbe:
		return s.probe(lines)
	case opLog:
		return s.log(lines)
	}
	return nil, &Error{Errno: unix.EPROTO, Line: 1, Err: errors.New("unknown operation"), fatal: true}
}

// set parses the whole request before it applies it. A truncated request is not applied.
func (s *Server) set(lines *lineReader) error {
	dev, err := parseSet(lines)
	if err != nil {
		if isDisconnected(err) || isFatal(err) {
			return err
		}
		return refuse(lines, err)
	}
	if !lines.ended {
		return io.ErrUnexpectedEOF
	}
	return wrapHandler(s.Handler.Configure(dev))
}

// get answers with all peers, or with the peers that the request names.
func (s *Server) get(lines *lineReader) ([]byte, error) {
	keys, err := readKeys(lines)
	if err != nil {
		return nil, err
	}
	st := s.Handler.Status()
	if len(keys) > 0 {
		st.Peers = slices.DeleteFunc(slices.Clone(st.Peers), func(p config.PeerStatus) bool { return !keys[p.PublicKey] })
	}
	var b bytes.Buffer
	err = WriteGet(&b, st)
	return b.Bytes(), wrapHandler(err)
}

// readKeys reads the rest of an operation whose lines are public keys.
func readKeys(lines *lineReader) (keys map[noise.PublicKey]bool, err error) {
	keys = map[noise.PublicKey]bool{}
	for {
		line, err := lines.next()
		if err != nil || line == "" {
			return keys, err
		}
		value, ok := strings.CutPrefix(line, "public_key=")
		key, keyErr := noise.ParseHex[noise.PublicKey](value)
		if !ok || keyErr != nil {
			return nil, refuse(lines, &Error{Errno: unix.EINVAL, Line: lines.line, Err: errors.New("want public_key= and a key in hexadecimal digits, or an empty line")})
		}
		keys[key] = true
	}
}

func (s *Server) flows(lines *lineReader) ([]byte, error) {
	if s.Flows == nil {
		return nil, refuse(lines, &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("this device counts no flows")})
	}
	return marshal(lines, s.Flows)
}

// marshal answers with a line of JSON.
func marshal(lines *lineReader, value func() any) ([]byte, error) {
	if err := readEnd(lines); err != nil {
		return nil, err
	}
	return encodeJSON(value())
}

func encodeJSON(value any) ([]byte, error) {
	b, err := json.Marshal(value)
	return append(b, '\n'), wrapHandler(err)
}

// readEnd reads the empty line after an operation without a body.
func readEnd(lines *lineReader) error {
	rest, err := lines.next()
	if err == nil && rest != "" {
		return refuse(lines, &Error{Errno: unix.EINVAL, Line: lines.line, Err: errors.New("want an empty line")})
	}
	return err
}

// refuse skips the rest of a bad operation, so that the next one can be read, and returns err.
func refuse(lines *lineReader, err error) error {
	if skipErr := lines.skip(); skipErr != nil {
		return skipErr
	}
	return err
}

// wrapHandler converts a Handler's error into an *Error.
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
