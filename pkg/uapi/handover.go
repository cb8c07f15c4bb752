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

	"golang.org/x/sys/unix"
)

// Two operations are for a daemon and its successor. "takeover=1" makes the connection one between the two, which speak on it as
// they like. "upgrade=1" with a line "path=…" has the daemon start its successor from that file, and is answered when that
// has the interface, or has not.

// takeOver hands the connection to the daemon. What it returns on success ends the connection.
func (s *Server) takeOver(lines *lineReader, conn net.Conn) error {
	if err := wantEnd(lines); err != nil {
		return err
	}
	c, ok := conn.(*net.UnixConn)
	if !ok || s.TakeOver == nil || lines.r.Buffered() > 0 {
		return &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("this device is not handed over")}
	}
	if err := checkUser(c); err != nil {
		return err
	}
	if err := s.TakeOver(c); err != nil {
		return wrapHandler(err)
	}
	return io.EOF
}

// checkUser lets in who runs as the same user as this process, or as root. The mode of the socket says the same; this holds for a
// connection that was made before it was set, too.
func checkUser(c *net.UnixConn) error {
	peer, err := PeerOf(c)
	switch {
	case err != nil:
		return wrapHandler(err)
	case peer.Uid != 0 && int(peer.Uid) != os.Geteuid():
		return &Error{Errno: unix.EPERM, Err: fmt.Errorf("asked for by user %d", peer.Uid)}
	}
	return nil
}

// PeerOf returns who is at the other end of c (SO_PEERCRED, unix(7)): who connected, or who listens. A process that is in another PID
// namespace has the Pid 0.
func PeerOf(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return peer, errors.Join(err, failed)
}

// upgrade has the daemon start its successor. answered is to be called when the client has its answer.
func (s *Server) upgrade(ctx context.Context, lines *lineReader, conn net.Conn) (answered func(), err error) {
	key, value, ok, err := lines.pair()
	if err == nil && ok {
		err = wantEnd(lines)
	}
	switch {
	case err != nil:
		return nil, err
	case !ok || key != "path" || !filepath.IsAbs(value):
		return nil, &Error{Errno: unix.EINVAL, Err: errors.New("want path= and an absolute path")}
	}
	c, ok := conn.(*net.UnixConn)
	if !ok || s.Upgrade == nil {
		return nil, &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("this daemon starts no successor")}
	}
	if err := checkUser(c); err != nil {
		return nil, err
	}
	answered, err = s.Upgrade(ctx, value)
	return answered, wrapHandler(err)
}

// TakeOver asks the daemon for its interface. The connection is the caller's then, with nothing read from it; the Client must not
// be used any more, and need not be closed.
func (c *Client) TakeOver() (*net.UnixConn, error) {
	conn, ok := c.conn.(*net.UnixConn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if err := c.send([]byte(opTakeOver + "\n\n")); err != nil {
		return nil, fmt.Errorf("asking for interface %s: %w", c.name, err)
	}
	return conn, nil
}

// RefusalPrefix begins what a daemon answers that does not hand its interface over (errno=-16, and an empty line).
const RefusalPrefix = errnoPrefix

// Refusal reads such an answer, after the first bytes of it: an *Error. Anything else is io.ErrUnexpectedEOF.
func Refusal(first []byte) error {
	value, ok := strings.CutPrefix(string(first), RefusalPrefix)
	value, _, _ = strings.Cut(value, "\n")
	var r reply
	if !ok || r.set(value) != nil || r.errno == 0 {
		return io.ErrUnexpectedEOF
	}
	return r.err()
}

// Upgrade has the daemon start the program at path, which is absolute, as its successor, and waits until that has the interface.
func (c *Client) Upgrade(path string) error {
	err := c.send([]byte(opUpgrade + "\npath=" + path + "\n\n"))
	if err == nil {
		err = parseReply(c.lines)
	}
	if err != nil {
		return fmt.Errorf("upgrading the daemon of %s: %w", c.name, err)
	}
	return nil
}

// Keep returns a descriptor of the socket for Resume, owned by the caller.
func (l *Listener) Keep() (fd int, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	err = raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, failed); err != nil {
		return -1, fmt.Errorf("duplicating the control socket: %w", err)
	}
	return fd, nil
}

// Leave has Close leave the socket's file alone: another Listener has it. Own undoes it. It fails with net.ErrClosed once Close has
// begun, which takes the file away.
func (l *Listener) Leave() error {
	l.fate.Lock()
	defer l.fate.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.kept = true
	return nil
}

// Own undoes Leave, and makes the socket this process's: who connects sees it as the one that listens (SO_PEERCRED).
func (l *Listener) Own() error {
	l.fate.Lock()
	l.kept = false
	l.fate.Unlock()
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Listen(int(fd), unix.SOMAXCONN) }) // net/unix/af_unix.c, unix_listen
	return errors.Join(err, failed)
}

// Resume goes on with the socket of a device, of which another Listener has kept the descriptor. It owns that in any case.
func (d Dir) Resume(name string, fd int) (*Listener, error) {
	path, err := d.path(name)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listening for interface %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().String() != path {
		_ = l.Close()
		return nil, fmt.Errorf("listening on %s: not its socket", path)
	}
	ul.SetUnlinkOnClose(false)
	id, err := os.Lstat(path)
	if err != nil {
		_ = ul.Close()
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return &Listener{UnixListener: ul, dir: d, path: path, id: id}, nil
}
