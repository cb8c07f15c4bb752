// SPDX-License-Identifier: Apache-2.0

package busypoll

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// spinInterval is the timeout of one poll that keeps its P.
	spinInterval = 9 * time.Millisecond
	// maxSpins is the number of such polls without an event before Poll blocks in the ordinary way.
	maxSpins = 11
)

// Poll blocks until one of fds is ready and reports which in their Revents, as poll(2) does. With
// busy it first keeps its P, as the package comment says. It does not allocate. Errors are
// poll(2)'s, except EINTR.
func Poll(fds []unix.PollFd, busy bool) error {
	if busy {
		return poll(fds, maxSpins)
	}
	return poll(fds, 0)
}

// PollFor is Poll for at most limit, which is short enough to keep the P: less than spinInterval. It does not report whether one of fds is
// ready.
func PollFor(fds []unix.PollFd, limit time.Duration) error {
	if _, errno := pollRaw(fds, min(limit, spinInterval)); errno != 0 && errno != unix.EINTR {
		return errno
	}
	return nil
}

// poll keeps its P for at most that many spins, and then blocks.
func poll(fds []unix.PollFd, spins int) error {
	for range spins {
		n, errno := pollRaw(fds, spinInterval)
		switch {
		case errno != 0 && errno != unix.EINTR:
			return errno
		case n > 0:
			return nil
		}
		runtime.Gosched() // run other goroutines and start a new time slice
	}
	for {
		n, err := unix.Poll(fds, -1)
		switch {
		case err != nil && err != unix.EINTR:
			return err
		case n > 0:
			return nil
		}
	}
}
