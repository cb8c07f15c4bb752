// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener is the socket of one device, open to this process's user only.
type Listener struct {
	*net.UnixListener
	dir   Dir
	path  string
	file  *os.File    // the socket's file (O_PATH), also when it has another name; Close closes it
	id    os.FileInfo // of the file, to recognise it
	pause pause

	mu       sync.Mutex // guards the fields below
	disowned bool       // another Listener owns the file
	closed   bool       // Close has begun
}

// Listen creates the socket of a device in DefaultDir. See Dir.Listen.
func Listen(name string) (*Listener, error) {
	return DefaultDir.Listen(name)
}

// Listen creates the socket of a device, and the directory if there is none. A socket that a dead
// process left behind is replaced. For a socket that a process serves the error is
// syscall.EADDRINUSE. A file that is no socket is left alone. If several processes call Listen at
// once, one succeeds.
func (d Dir) Listen(name string) (*Listener, error) {
	path, err := d.path(name)
	if err != nil {
		return nil, fmt.Errorf("listening for interface %q: %w", name, err)
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, fmt.Errorf("creating the socket directory: %w", err)
	}
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return d.bind(path)
}

// lock serialises the creation and removal of sockets in the directory. The lock is on the directory itself: a lock file
// could not be removed without a race.
func (d Dir) lock() (unlock func(), err error) {
	f, err := os.Open(string(d))
	if err != nil {
		return nil, fmt.Errorf("opening the socket directory: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", d, err)
	}
	return func() { f.Close() }, nil
}

// removeStale removes a dead socket from path, so that bind can succeed. It fails for a live socket and for other files. The caller
// holds the lock.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%w: %w", ErrNotSocket, unix.EEXIST)
	case isServed(path):
		return fmt.Errorf("another process serves this interface: %w", unix.EADDRINUSE)
	}
	return os.Remove(path)
}

// Sweep removes the sockets that match glob (filepath.Match), that no process serves, and that are
// at least as old as the grace period. A daemon may be about to listen on a younger one.
func (d Dir) Sweep(glob string, grace time.Duration) error {
	unlock, err := d.lock()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	paths, err := filepath.Glob(filepath.Join(string(d), glob))
	errs := []error{err}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err == nil && info.Mode().Type() == os.ModeSocket && time.Since(info.ModTime()) >= grace && !isServed(path) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// isServed reports whether a process listens on the socket. Only a refused connection proves that none does. A full listen
// queue does not.
func isServed(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return true
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist)
}

// bindAttempts is how often bind creates a socket whose file others remove at once. On a busy machine that happens some times in a row.
const bindAttempts = 1000

// bind creates the socket. wg(8) removes sockets that refuse connections, as this one does between its bind(2) and its listen(2).
func (d Dir) bind(path string) (l *Listener, err error) {
	for range bindAttempts {
		if l, err = d.bindOnce(path); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return l, err
}

func (d Dir) bindOnce(path string) (*Listener, error) {
	lc := net.ListenConfig{Control: ownerOnly}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return d.newListener(l.(*net.UnixListener), path)
}

// newListener returns the Listener of a socket that is bound to path. It takes ownership of the socket, also on error.
func (d Dir) newListener(l *net.UnixListener, path string) (*Listener, error) {
	l.SetUnlinkOnClose(false)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listening on %s: opening the socket's file: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	id, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close(), l.Close())
	}
	return &Listener{UnixListener: l, dir: d, path: path, file: file, id: id}, nil
}

// ownerOnly sets the mode that bind gives to the socket file: the mode of the unbound socket
// (net/unix/af_unix.c, unix_bind_bsd). Changing the umask instead would affect files that other
// goroutines create.
func ownerOnly(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
		return cerr
	}
	return err
}

// Close stops listening, and removes the socket's file unless it is disowned or belongs to another socket by now. Connections stay
// open.
func (l *Listener) Close() error {
	defer func() { _ = l.Resume() }() // so that a paused Accept returns
	defer l.file.Close()
	if l.beginClose() {
		return l.UnixListener.Close()
	}
	unlock, err := l.dir.lock()
	if err != nil {
		return errors.Join(err, l.UnixListener.Close())
	}
	defer unlock()
	info, err := os.Lstat(l.path)
	if err == nil && os.SameFile(info, l.id) {
		err = os.Remove(l.path)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.UnixListener.Close())
}

// beginClose makes Disown fail from now on, and reports whether the file is disowned.
func (l *Listener) beginClose() (disowned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.disowned
}
