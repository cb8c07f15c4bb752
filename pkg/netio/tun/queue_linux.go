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

// queue is one non-blocking descriptor of a TUN device. It blocks in poll(2), together with the stop eventfd.
type queue struct {
	fd       int
	stop     int             // an eventfd, readable once reading must stop
	deleted  chan<- struct{} // gets a token when the interface was deleted
	busyPoll bool
	reading  fdguard.Guard
	readOr   struct {
		fds     [2 + MaxReadFDs]unix.PollFd
		timeout int // in milliseconds
	}
	writing fdguard.Guard
	readErr error // for the next Read: it occurred after trains that had to be returned
	vector  vector

	inject struct {
		mu      sync.Mutex
		writing fdguard.Guard
		vector  vector
	}
}

// vector is the argument of one writer's writev.
type vector [MaxBuffers]unix.Iovec

var _ Queue = (*queue)(nil)

func newQueue(fd, stop int, deleted chan<- struct{}, busyPoll bool) *queue {
	q := &queue{fd: fd, stop: stop, deleted: deleted, busyPoll: busyPoll, reading: fdguard.New(), writing: fdguard.New()}
	q.inject.writing, q.readOr.timeout = fdguard.New(), readOrTimeout
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
		if err := q.wait(unix.POLLIN); err != nil {
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

// wait blocks until the descriptor is ready for events. It returns os.ErrClosed when reading stops or the interface
// was deleted.
func (q *queue) wait(events int16) error {
	fds := [2]unix.PollFd{{Fd: int32(q.fd), Events: events}, {Fd: int32(q.stop), Events: unix.POLLIN}}
	if err := busypoll.Poll(fds[:], q.busyPoll); err != nil {
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
func (q *queue) Write(buffers [][]byte) error {
	if !q.writing.Enter() {
		return os.ErrClosed
	}
	err := q.write(buffers, &q.vector)
	q.writing.Leave()
	return err
}

// Inject implements Queue.
func (q *queue) Inject(buffers [][]byte) error {
	q.inject.mu.Lock()
	defer q.inject.mu.Unlock()
	if !q.inject.writing.Enter() {
		return os.ErrClosed
	}
	err := q.write(buffers, &q.inject.vector)
	q.inject.writing.Leave()
	return err
}

func (q *queue) write(buffers [][]byte, iovs *vector) error {
	if len(buffers) > len(iovs) {
		return ErrTooManyBuffers
	}
	count := 0
	for _, b := range buffers {
		if len(b) > 0 {
			iovs[count].Base = &b[0]
			iovs[count].SetLen(len(b))
			count++
		}
	}
	if count == 0 {
		return unix.EINVAL
	}
	for {
		switch errno := writev(q.fd, iovs[:count]); errno {
		case 0:
			return nil
		case unix.EINTR:
		case unix.EAGAIN:
			if err := q.wait(unix.POLLOUT); err != nil {
				return err
			}
		default:
			return q.signalIfDeleted(errno)
		}
	}
}
