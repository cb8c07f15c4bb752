// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"os"

	"golang.org/x/sys/unix"
)

// WakeRx tells the kernel that there are frames again, if it sleeps for want of them, and drives the device with
// BusyPoll. It is not needed before poll(2), which does the same. Errors: ErrDown, ErrGone, ErrQueueGone, os.ErrClosed;
// another is the system's and may pass.
func (s *Socket) WakeRx() error {
	switch {
	case s.fd < 0:
		return os.ErrClosed
	case !s.features.BusyPoll && !s.rx.fill.needsWakeup():
		return nil
	}
	count(&s.rx.wakes, 1)
	errno := s.sys.receive(s.fd)
	if isTransient(errno) {
		return nil
	}
	return stateError("recvfrom", errno)
}

// isTransient reports whether what the kernel says only means "not now".
func isTransient(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ENOBUFS, unix.ENOMEM:
		return true
	}
	return false
}

// leastBatch is the smallest number of frames that any kernel sends per call in copy mode (16 before Linux 5.11).
const leastBatch = 16

// WakeTx has the kernel send what was submitted. In copy mode it does the sending, and goes on until all is sent or the
// device takes no more; then Pending is not 0, and WakeTx should be called again before long. With zero-copy it only
// wakes the driver, if that sleeps. Errors: as for WakeRx. Frames stay submitted through ErrDown; after ErrGone and
// ErrQueueGone there is only Close.
func (s *Socket) WakeTx() error {
	switch {
	case s.fd < 0:
		return os.ErrClosed
	case s.features.Mode != ZeroCopy && s.Pending() == 0:
		return nil // a driver without copies may have to be woken to complete what it has taken
	case !s.features.BusyPoll && !s.tx.ring.needsWakeup():
		return nil
	}
	// A kernel before 5.16 that stops half-way does not show how far it came: only when it finds the ring empty. So
	// that nothing seems to move is believed when so many calls have been made that all could have been sent.
	for patience := 2 + s.Pending()/leastBatch; ; patience-- {
		moved, again, err := s.wakeTxOnce()
		if moved {
			patience = 2 + s.Pending()/leastBatch
		}
		if !again || patience <= 0 {
			return err
		}
	}
}

// wakeTxOnce also reports whether frames have left the ring, and whether the kernel should be called again.
func (s *Socket) wakeTxOnce() (moved, again bool, err error) {
	before := s.tx.ring.consumer.Load()
	errno := s.sys.send(s.fd)
	count(&s.tx.wakes, 1)
	moved = s.tx.ring.consumer.Load() != before
	if s.features.Mode == ZeroCopy {
		if isTransient(errno) {
			errno = 0 // the flag stays set: the next call tries again
		}
		return moved, false, stateError("sendto", errno)
	}
	switch {
	case errno == unix.EBUSY: // the device dropped the frame, which is completed like any other
		count(&s.tx.refused, 1)
		return moved, s.Pending() > 0, nil
	case isTransient(errno):
		return moved, s.Pending() > 0, nil
	case errno == 0 && s.Pending() > 0 && !moved:
		return moved, false, ErrQueueGone // the kernel says nothing, and sends nothing, beyond the last queue
	case errno == 0:
		return moved, s.Pending() > 0, nil
	}
	return moved, false, stateError("sendto", errno)
}

// Nudge has the kernel go on with what was submitted, for as long as frames are seen to leave, but may be called by any goroutine beside
// the one that sends: so that frames which the device did not take at first do not wait until there are more. It makes no more calls
// than those that are pending at first could take. Errors: as for WakeTx, but for ErrQueueGone in copy mode, which only the sender can
// tell from frames that were submitted meanwhile.
func (s *Socket) Nudge() error {
	for most := 1 + s.Pending()/leastBatch; s.fd >= 0 && s.Pending() > 0 && most > 0; most-- {
		before := s.tx.ring.consumer.Load()
		errno := s.sys.send(s.fd)
		switch {
		case errno == unix.EBUSY: // as in wakeTxOnce
			s.tx.dropped.Add(1)
		case !isTransient(errno):
			return stateError("sendto", errno)
		}
		if s.tx.ring.consumer.Load() == before {
			break
		}
	}
	return nil
}

// Check asks the kernel for the state of the Socket: nil, ErrDown, ErrGone or os.ErrClosed. In copy mode it cannot see
// that the queue is gone; WakeTx does.
func (s *Socket) Check() error {
	if s.fd < 0 {
		return os.ErrClosed
	}
	errno := s.sys.receive(s.fd)
	if errno == unix.EOPNOTSUPP { // before Linux 5.11
		errno = s.sys.send(s.fd)
	}
	if isTransient(errno) {
		return nil
	}
	return stateError("recvfrom", errno)
}
