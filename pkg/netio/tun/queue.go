// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/busypoll"
	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
)

// queue is one non-blocking descriptor of a TUN device. Readers block in poll(2), together with the stop eventfd.
type queue struct {
	fd      int
	stop    int             // an eventfd, readable once reading must stop
	deleted chan<- struct{} // gets a token when the interface was deleted
	poller  busypoll.Poller // of the reader
	reading fdguard.Guard
	readOr  struct {
		fds     [2 + MaxReadFDs]unix.PollFd
		timeout int // in milliseconds
	}
	readErr  error // for the next Read: it occurred after trains that had to be returned
	writer   writer
	injectMu sync.Mutex
	injector writer
}

// writer is the state of one goroutine that writes.
type writer struct {
	guard  fdguard.Guard
	vector [MaxBuffers]unix.Iovec // the argument of writev
}

var _ Queue = (*queue)(nil)

func newQueue(fd, stop int, deleted chan<- struct{}, busyPoll bool) *queue {
	q := &queue{fd: fd, stop: stop, deleted: deleted, poller: busypoll.Poller{Busy: busyPoll}, reading: fdguard.New()}
	q.writer.guard, q.injector.guard, q.readOr.timeout = fdguard.New(), fdguard.New(), readOrTimeout
	return q
}

// Read implements Queue.
func (q *queue) Read(bufs [][]byte, sizes []int) (int, error) {
	if !q.reading.Enter() {
		return 0, os.ErrClosed
	}
	n, err := q.read(bufs, sizes)
	q.reading.Leave()
	return n, err
}

func (q *queue) read(bufs [][]byte, sizes []int) (n int, err error) {
	for len(bufs) > 0 {
		n = q.drain(bufs, sizes)
		err, q.readErr = q.readErr, nil
		switch {
		case n > 0:
			q.readErr = err // the next Read returns it
			return n, nil
		case err != nil:
			return 0, q.signalIfDeleted(err)
		}
		if err := q.wait(); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

const (
	// readOrTimeout limits the wait of ReadOr, in milliseconds. Closing a port wakes ReadOr, except when its sockets are kept for
	// another process.
	readOrTimeout = 100
	// manyFDsTimeout takes its place if there are more descriptors than MaxReadFDs: ReadOr does not wait for the others.
	manyFDsTimeout = 1
)

// ReadOr implements Queue.
func (q *queue) ReadOr(bufs [][]byte, sizes []int, writable []int32) (n int, err error) {
	if !q.reading.Enter() {
		return 0, os.ErrClosed
	}
	defer q.reading.Leave()
	if n = q.drain(bufs, sizes); n > 0 {
		return n, nil
	}
	if err, q.readErr = q.readErr, nil; err != nil {
		return 0, q.signalIfDeleted(err)
	}
	fds, timeout := append(q.readOr.fds[:0], unix.PollFd{Fd: int32(q.fd), Events: unix.POLLIN}, unix.PollFd{Fd: int32(q.stop), Events: unix.POLLIN}), q.readOr.timeout
	if len(writable) > MaxReadFDs {
		timeout = manyFDsTimeout
	}
	for _, fd := range writable[:min(len(writable), MaxReadFDs)] {
		fds = append(fds, unix.PollFd{Fd: fd, Events: unix.POLLOUT})
	}
	if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
		return 0, err
	}
	if err := q.pollResult(fds); err != nil {
		return 0, err
	}
	return q.drain(bufs, sizes), nil
}

// TryRead implements Queue.
func (q *queue) TryRead(bufs [][]byte, sizes []int) (n int) {
	if !q.reading.Enter() {
		return 0
	}
	n = q.drain(bufs, sizes)
	q.reading.Leave()
	return n
}

// drain reads until a train above BigTrain, an error, or the end of the queue or of bufs.
func (q *queue) drain(bufs [][]byte, sizes []int) (n int) {
	for n < len(bufs) && q.readErr == nil {
		size, errno := read(q.fd, bufs[n])
		switch errno {
		case 0:
			sizes[n] = size
			n++
			if size > BigTrain {
				return n
			}
		case unix.EINTR:
		case unix.EAGAIN:
			return n
		default:
			q.readErr = errno
		}
	}
	return n
}

// wait blocks until there may be a train. It returns os.ErrClosed when reading stops or the interface was deleted.
func (q *queue) wait() error {
	fds := [2]unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}, {Fd: int32(q.stop), Events: unix.POLLIN}}
	if err := q.poller.Poll(fds[:]); err != nil {
		return err
	}
	return q.pollResult(fds[:])
}

// pollResult returns the error that poll has found at the descriptor and the stop eventfd, which are the first of fds.
func (q *queue) pollResult(fds []unix.PollFd) error {
	switch {
	case fds[1].Revents != 0:
		return os.ErrClosed
	case fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
		return q.signalIfDeleted(unix.EBADFD)
	default:
		return nil
	}
}

// closedIfDeleted returns os.ErrClosed for the kernel's errors after the interface was deleted: EBADFD, or EFAULT for
// a reader that was blocked during the deletion.
func closedIfDeleted(err error) error {
	if errors.Is(err, unix.EBADFD) || errors.Is(err, unix.EFAULT) {
		return os.ErrClosed
	}
	return err
}

// signalIfDeleted is closedIfDeleted, and signals the monitor, which receives no event when the interface is deleted with its namespace.
func (q *queue) signalIfDeleted(err error) error {
	if err = closedIfDeleted(err); errors.Is(err, os.ErrClosed) {
		select {
		case q.deleted <- struct{}{}:
		default:
		}
	}
	return err
}

// Write implements Queue.
func (q *queue) Write(buffers [][]byte) error { return q.writer.write(q, buffers) }

// Inject implements Queue.
func (q *queue) Inject(buffers [][]byte) error {
	q.injectMu.Lock()
	defer q.injectMu.Unlock()
	return q.injector.write(q, buffers)
}

func (w *writer) write(q *queue, buffers [][]byte) error {
	if !w.guard.Enter() {
		return os.ErrClosed
	}
	defer w.guard.Leave()
	iovs, err := w.fill(buffers)
	if err != nil {
		return err
	}
	for {
		switch errno := writev(q.fd, iovs); errno {
		case 0:
			return nil
		case unix.EINTR:
		case unix.EAGAIN:
			if err := w.waitForRoom(q); err != nil {
				return err
			}
		default:
			return q.signalIfDeleted(errno)
		}
	}
}

// fill returns the vector of a train.
func (w *writer) fill(buffers [][]byte) ([]unix.Iovec, error) {
	if len(buffers) > len(w.vector) {
		return nil, ErrTooManyBuffers
	}
	count := 0
	for _, b := range buffers {
		if len(b) > 0 {
			w.vector[count].Base = &b[0]
			w.vector[count].SetLen(len(b))
			count++
		}
	}
	if count == 0 {
		return nil, unix.EINVAL
	}
	return w.vector[:count], nil
}

// writeTimeout limits a poll for room, in milliseconds. Nothing wakes it when the device is closed.
const writeTimeout = 100

// waitForRoom blocks until the queue takes a train. Unlike wait it ignores the end of reading.
func (w *writer) waitForRoom(q *queue) error {
	fds := [1]unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLOUT}}
	for !w.guard.Closing() {
		switch n, err := unix.Poll(fds[:], writeTimeout); {
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
			return q.signalIfDeleted(unix.EBADFD)
		case n > 0:
			return nil
		}
	}
	return os.ErrClosed
}
