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
	// maxSpins is the number of such polls without an event before a Poller blocks in the ordinary way.
	maxSpins = 11
)

// recent is the longest time between two events after which Poll spins.
const recent = maxSpins * spinInterval

// Poller waits for events at file descriptors. The zero Poller never spins. It has one user at a time.
type Poller struct {
	// Busy has Poll spin while events follow each other closely.
	Busy bool

	hot  bool      // the next Poll spins
	last time.Time // of the last event that ended a block, zero for none
}

// Poll blocks until one of fds is ready and reports which in their Revents, as poll(2) does. After
// an event that followed another one closely it first keeps its P, as the package comment says. It
// does not allocate. Errors are poll(2)'s, except EINTR.
func (p *Poller) Poll(fds []unix.PollFd) error {
	if p.hot {
		if ready, err := spin(fds, maxSpins); ready || err != nil {
			return err
		}
	}
	err := block(fds)
	now := time.Now()
	p.hot, p.last = p.Busy && now.Sub(p.last) < recent, now
	return err
}

// PollFor waits for at most limit, which is short enough to keep the P: less than spinInterval. It does not report whether one of fds is
// ready.
func PollFor(fds []unix.PollFd, limit time.Duration) error {
	if _, errno := pollRaw(fds, min(limit, spinInterval)); errno != 0 && errno != unix.EINTR {
		return errno
	}
	return nil
}

// spin keeps its P for at most that many intervals, until one of fds is ready.
func spin(fds []unix.PollFd, intervals int) (ready bool, err error) {
	for range intervals {
		n, errno := pollRaw(fds, spinInterval)
		switch {
		case errno != 0 && errno != unix.EINTR:
			return false, errno
		case n > 0:
			return true, nil
		}
		runtime.Gosched() // run other goroutines and start a new time slice
	}
	return false, nil
}

// block blocks in the ordinary way until one of fds is ready.
func block(fds []unix.PollFd) error {
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
