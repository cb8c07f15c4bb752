// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"os"

	"golang.org/x/sys/unix"
)

// WakeRx wakes the kernel after Refill if it has run out of frames. It is not needed before poll(2), which does the same. Errors: ErrDown, ErrGone, ErrQueueGone, os.ErrClosed. Any other error
// comes from the system call and may be transient.
func (s *Socket) WakeRx() error {
	switch {
	case s.fd < 0:
		return os.ErrClosed
	case !s.rx.fill.needsWakeup():
		return nil
	}
	errno := s.sys.receive(s.fd)
	if isTransient(errno) {
		return nil
	}
	return stateError("recvfrom", errno)
}

// isTransient reports whether the kernel may accept the same call later.
func isTransient(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ENOBUFS, unix.ENOMEM:
		return true
	}
	return false
}

// minTxBatch is the smallest number of frames that any kernel sends per call in copy mode (16 before Linux 5.11).
const minTxBatch = 16

// WakeTx makes the kernel send the submitted frames. In copy mode it repeats the call until all are sent or the
// device accepts no more. Then Pending is not 0, and WakeTx should be called again soon. With zero-copy it only wakes
// a sleeping driver. Errors: as for WakeRx. Frames stay submitted through ErrDown. After ErrGone and ErrQueueGone
// only Close is useful.
func (s *Socket) WakeTx() error {
	switch {
	case s.fd < 0:
		return os.ErrClosed
	case s.features.Mode != ZeroCopy && s.Pending() == 0:
		return nil // in zero-copy mode the driver may need a wakeup to complete frames
	case !s.tx.ring.needsWakeup():
		return nil
	}
	// A kernel before 5.16 updates the consumer index only when it finds the ring empty. So the loop stops for lack of
	// progress only after enough calls to send everything.
	for attempts := 2 + s.Pending()/minTxBatch; ; attempts-- {
		moved, again, err := s.wakeTxOnce()
		if moved {
			attempts = 2 + s.Pending()/minTxBatch
		}
		if !again || attempts <= 0 {
			return err
		}
	}
}

// wakeTxOnce also reports whether frames have left the ring, and whether to call the kernel again.
func (s *Socket) wakeTxOnce() (moved, again bool, err error) {
	before := s.tx.ring.consumer.Load()
	errno := s.sys.send(s.fd)
	moved = s.tx.ring.consumer.Load() != before
	if s.features.Mode == ZeroCopy {
		if isTransient(errno) {
			errno = 0 // the wakeup flag stays set: the next call retries
		}
		return moved, false, stateError("sendto", errno)
	}
	switch {
	case errno == unix.EBUSY: // the device dropped the frame; the kernel completes it nevertheless
		count(&s.tx.refused, 1)
		return moved, s.Pending() > 0, nil
	case isTransient(errno):
		return moved, s.Pending() > 0, nil
	case errno == 0 && s.Pending() > 0 && !moved:
		return moved, false, ErrQueueGone // for a queue that no longer exists the kernel sends nothing and reports no error
	case errno == 0:
		return moved, s.Pending() > 0, nil
	}
	return moved, false, stateError("sendto", errno)
}

// KickTx makes the kernel continue sending the submitted frames while they leave the ring. Any goroutine may call it
// beside the sender, so that frames which the device did not accept at first need not wait for more. It makes at most
// as many calls as the frames pending at first need. Errors: as for WakeTx, except ErrQueueGone in copy mode: only
// the sender can distinguish that from frames submitted meanwhile.
func (s *Socket) KickTx() error {
	for calls := 1 + s.Pending()/minTxBatch; s.fd >= 0 && s.Pending() > 0 && calls > 0; calls-- {
		before := s.tx.ring.consumer.Load()
		errno := s.sys.send(s.fd)
		switch {
		case errno == unix.EBUSY: // as in wakeTxOnce
			s.tx.refusedByKick.Add(1)
		case !isTransient(errno):
			return stateError("sendto", errno)
		}
		if s.tx.ring.consumer.Load() == before {
			break
		}
	}
	return nil
}

// Check queries the state of the Socket: nil, ErrDown, ErrGone or os.ErrClosed. In copy mode it cannot detect a
// deleted queue; WakeTx can.
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
