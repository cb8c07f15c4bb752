// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/gate"
	"github.com/ropewalk/ropewalk/pkg/linger"
)

// queue is one non-blocking descriptor of a TUN. Blocking is poll's business, so that stop can end it.
type queue struct {
	fd      int
	stop    int             // an eventfd, readable once the device closes
	lost    chan<- struct{} // gets a token when the interface is found to be gone
	linger  bool
	reading gate.Gate
	writing gate.Gate
	failed  error // Read's, met behind elements that had to be returned first
	vector  vector

	inject struct {
		mu      sync.Mutex
		writing gate.Gate
		vector  vector
	}
}

// vector is the argument of one writer's writev.
type vector [MaxParts]unix.Iovec

var _ Queue = (*queue)(nil)

func newQueue(fd, stop int, lost chan<- struct{}, linger bool) *queue {
	q := &queue{fd: fd, stop: stop, lost: lost, linger: linger, reading: gate.New(), writing: gate.New()}
	q.inject.writing = gate.New()
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
		err, q.failed = q.failed, nil
		switch {
		case n > 0:
			q.failed = err // behind what is returned
			return n, nil
		case err != nil:
			return 0, q.goneOr(err)
		}
		if err := q.wait(unix.POLLIN); err != nil {
			return 0, err
		}
	}
	return 0, nil
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

// drain reads until a train, an error, or the end of the queue or of bufs.
func (q *queue) drain(bufs [][]byte, sizes []int) (n int) {
	for n < len(bufs) && q.failed == nil {
		size, errno := read(q.fd, bufs[n])
		switch errno {
		case 0:
			sizes[n] = size
			n++
			if size > bigElement {
				return n
			}
		case unix.EINTR:
		case unix.EAGAIN:
			return n
		default:
			q.failed = errno
		}
	}
	return n
}

// wait blocks until the descriptor is ready for events. It returns os.ErrClosed when the device closes or is gone.
func (q *queue) wait(events int16) error {
	fds := [2]unix.PollFd{{Fd: int32(q.fd), Events: events}, {Fd: int32(q.stop), Events: unix.POLLIN}}
	switch err := linger.Poll(fds[:], q.linger); {
	case err != nil:
		return err
	case fds[1].Revents != 0:
		return os.ErrClosed
	case fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
		return q.goneOr(unix.EBADFD)
	default:
		return nil
	}
}

// goneOr returns os.ErrClosed for what the kernel says once the interface was deleted: EBADFD, or EFAULT to a reader
// that was inside while it happened.
func goneOr(err error) error {
	if errors.Is(err, unix.EBADFD) || errors.Is(err, unix.EFAULT) {
		return os.ErrClosed
	}
	return err
}

// goneOr also tells the monitor, which hears nothing of an interface that ends with its namespace.
func (q *queue) goneOr(err error) error {
	if err = goneOr(err); errors.Is(err, os.ErrClosed) {
		select {
		case q.lost <- struct{}{}:
		default:
		}
	}
	return err
}

// Write implements Queue.
func (q *queue) Write(parts [][]byte) error {
	if !q.writing.Enter() {
		return os.ErrClosed
	}
	err := q.write(parts, &q.vector)
	q.writing.Leave()
	return err
}

// Inject implements Queue.
func (q *queue) Inject(parts [][]byte) error {
	q.inject.mu.Lock()
	defer q.inject.mu.Unlock()
	if !q.inject.writing.Enter() {
		return os.ErrClosed
	}
	err := q.write(parts, &q.inject.vector)
	q.inject.writing.Leave()
	return err
}

func (q *queue) write(parts [][]byte, iovs *vector) error {
	if len(parts) > len(iovs) {
		return ErrTooManyParts
	}
	count := 0
	for _, part := range parts {
		if len(part) > 0 {
			iovs[count].Base = &part[0]
			iovs[count].SetLen(len(part))
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
			return q.goneOr(errno)
		}
	}
}
