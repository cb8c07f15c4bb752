// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file holds what an upgrade needs of the control socket: two operations, and a listening socket that passes from the predecessor
// to the successor.
//
// Operation "takeover=1" turns the connection into one between predecessor and successor, with a protocol of their own (package
// daemon/handover). Operation "upgrade=1" with a line "path=…" makes the daemon start that program as its successor. The answer comes
// when the successor has the interface, or has failed. A failure's text precedes the errno, in lines "reason=…".

// handover passes the connection to the daemon. On success it returns io.EOF, which ends the
// connection. The end of ctx ends the connection as well.
func (s *Server) handover(ctx context.Context, lines *lineReader, conn net.Conn) error {
	if err := readEnd(lines); err != nil {
		return err
	}
	c, ok := conn.(*net.UnixConn)
	if !ok || s.Handover == nil || lines.r.Buffered() > 0 {
		return &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("handover is not supported by this process")}
	}
	if err := checkUser(c); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := s.Handover(c); err != nil {
		return wrapHandler(err)
	}
	return io.EOF
}

// upgrade makes the daemon start its successor. The caller calls replied once the client has its answer.
func (s *Server) upgrade(ctx context.Context, lines *lineReader, conn net.Conn) (replied func(), err error) {
	key, value, ok, err := lines.pair()
	if err == nil && ok {
		err = readEnd(lines)
	}
	switch {
	case err != nil:
		return nil, err
	case !ok || key != "path" || !filepath.IsAbs(value):
		return nil, &Error{Errno: unix.EINVAL, Err: errors.New("upgrade=1: the next line must be path= and an absolute path")}
	}
	c, ok := conn.(*net.UnixConn)
	if !ok || s.Upgrade == nil {
		return nil, &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("upgrade is not supported by this process: only `ropewalk run` without --keep supports it. From --keep another `ropewalk run --keep` takes over")}
	}
	if err := checkUser(c); err != nil {
		return nil, err
	}
	replied, err = s.Upgrade(ctx, value)
	return replied, wrapHandler(err)
}

// checkUser refuses clients that run neither as root nor as the user of this process. The mode of the socket's file does the same, but
// not for connections made before the mode was set.
func checkUser(c *net.UnixConn) error {
	peer, err := PeerCredentials(c)
	switch {
	case err != nil:
		return wrapHandler(err)
	case peer.Uid != 0 && int(peer.Uid) != os.Geteuid():
		return &Error{Errno: unix.EPERM, Err: fmt.Errorf("only root and user %d (the daemon's) may request an upgrade or handover, not user %d", os.Geteuid(), peer.Uid)}
	}
	return nil
}

// PeerCredentials returns the credentials of the process at the other end of c (SO_PEERCRED,
// unix(7)). It is the process that connected, or the process that listens. A process in another
// PID namespace has Pid 0.
func PeerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	var peer *unix.Ucred
	err := withFD(c, func(fd int) (err error) {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return peer, err
}

// withFD calls f with the descriptor of a socket, which stays the socket's.
func withFD(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

// RequestHandover asks the daemon to hand its interface over. It returns the connection, which is the caller's, and has read nothing from it.
// The Client must not be used any more, and need not be closed.
func (c *Client) RequestHandover() (*net.UnixConn, error) {
	conn, ok := c.conn.(*net.UnixConn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if err := c.send([]byte(opHandover + "\n\n")); err != nil {
		return nil, fmt.Errorf("requesting the handover of interface %s: %w", c.name, err)
	}
	return conn, nil
}

// RefusalPrefix begins the answer of a daemon that refuses a handover (errno=-16, and an empty line).
const RefusalPrefix = errnoPrefix

// ParseRefusal parses the first bytes of an answer that begins with RefusalPrefix, and returns its *Error. For other bytes it returns
// io.ErrUnexpectedEOF.
func ParseRefusal(first []byte) error {
	value, ok := strings.CutPrefix(string(first), RefusalPrefix)
	value, _, _ = strings.Cut(value, "\n")
	var r reply
	if !ok || r.set(value) != nil || r.errno == 0 {
		return io.ErrUnexpectedEOF
	}
	return r.err()
}

// Upgrade makes the daemon start the program at path (absolute) as its successor, and waits until the successor has the interface.
func (c *Client) Upgrade(path string) error {
	err := c.send([]byte(opUpgrade + "\npath=" + path + "\n\n"))
	if err == nil {
		err = readAnswer(c.lines, nil)
	}
	if err != nil {
		return fmt.Errorf("upgrading the daemon of %s: %w", c.name, err)
	}
	return nil
}

// DupFD returns a new descriptor of the socket for Dir.ListenFD. The caller owns it.
func (l *Listener) DupFD() (fd int, err error) {
	err = withFD(l, func(old int) (err error) {
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("duplicating the control socket: %w", err)
	}
	return fd, nil
}

// ListenFD returns a Listener for the socket of a device, from a descriptor of DupFD. The
// descriptor may also be of a socket at the same path that another program listens on. ListenFD
// takes ownership of the descriptor, also on error.
func (d Dir) ListenFD(name string, fd int) (*Listener, error) {
	path, err := d.path(name)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listening for interface %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
		return nil, fmt.Errorf("listening on %s: the given descriptor is no listening socket", path)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().String() != path {
		_ = l.Close()
		return nil, fmt.Errorf("the given socket is not the control socket %s but %s", path, l.Addr())
	}
	return d.newListener(ul, path)
}

// Disown makes Close leave the socket's file in place, because another Listener owns the file. Own undoes this. Once Close has begun to
// remove the file, Disown fails with net.ErrClosed.
func (l *Listener) Disown() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.disowned = true
	return nil
}

// Own undoes Disown. Clients then see this process as the listening process (SO_PEERCRED).
func (l *Listener) Own() error {
	l.mu.Lock()
	l.disowned = false
	l.mu.Unlock()
	return withFD(l, func(fd int) error { return unix.Listen(fd, unix.SOMAXCONN) }) // net/unix/af_unix.c, unix_listen
}

// pause makes Accept wait.
type pause struct {
	mu        sync.Mutex
	done      chan struct{} // closed by Resume; nil while Accept is not paused
	accepting sync.Mutex    // held while Accept may return a client
}

// Pause makes Accept wait until Resume. Clients that connect after Pause wait in the listen queue, for Resume or for another process that
// accepts from the same socket (Dir.ListenFD).
func (l *Listener) Pause() error {
	l.pause.mu.Lock()
	defer l.pause.mu.Unlock()
	if l.pause.done == nil {
		l.pause.done = make(chan struct{})
	}
	err := l.SetDeadline(time.Unix(1, 0))
	l.pause.accepting.Lock() // waits for an Accept that has passed its check of the deadline
	defer l.pause.accepting.Unlock()
	return err
}

// Resume undoes Pause.
func (l *Listener) Resume() error {
	l.pause.mu.Lock()
	defer l.pause.mu.Unlock()
	if l.pause.done == nil {
		return nil
	}
	err := l.SetDeadline(time.Time{})
	close(l.pause.done)
	l.pause.done = nil
	return err
}

// Accept implements net.Listener. It waits while the Listener is paused.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.pause.accepting.Lock()
		conn, err := l.UnixListener.Accept()
		l.pause.accepting.Unlock()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		l.pause.wait()
	}
}

func (p *pause) wait() {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done != nil {
		<-done
	}
}
