// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// laneSocket is one AF_XDP socket in use by a lane. The supervisor opens and closes it. Each guard is for one goroutine
// of the lane.
type laneSocket struct {
	socket  *xsk.Socket
	device  int
	rx, tx  fdguard.Guard
	offload bool // request UDP checksums from the device
	// down is set while nothing can be sent because the device is down.
	down atomic.Bool
	// failure is the reason why the socket cannot be used any more.
	failure atomic.Pointer[error]
	// ending: receive the remaining frames before the UDP socket. lastFrame: no more frames arrive; empty is closed
	// after the last one.
	ending, lastFrame atomic.Bool
	empty             chan struct{}
	// progress is socket.TxProgress, except in tests. The supervisor's goroutine alone uses it and watch.
	progress func() (done uint32, outstanding int)
	watch    txWatch
}

func newLaneSocket(s *xsk.Socket, d *device) *laneSocket {
	f := s.Features()
	return &laneSocket{
		socket: s, device: d.index, rx: fdguard.New(), tx: fdguard.New(), offload: offloads(&f, d.completes), empty: make(chan struct{}),
		progress: s.TxProgress,
	}
}

// offloads reports whether checksum offload may be used. In zero-copy mode the driver declares it (Features). In copy
// mode completesChecksums decides.
func offloads(f *xsk.Features, completes bool) bool {
	return f.TxChecksum && (f.Mode == xsk.ZeroCopy || completes)
}

// works reports whether the lane socket can carry anything.
func (c *laneSocket) works() bool { return !c.down.Load() && c.failure.Load() == nil }

// hasHeldFrames reports whether the kernel left frames in the ring, as it does in copy mode when the device's queue is
// full. A zero-copy driver fetches them itself. Any goroutine inside one of the guards may call it.
func (c *laneSocket) hasHeldFrames() bool {
	return c.socket.Features().Mode != xsk.ZeroCopy && c.socket.Pending() > 0
}

// recordError records an error of the socket, and reports whether the supervisor must act. It does not record transient
// errors.
func (c *laneSocket) recordError(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, xsk.ErrDown):
		return !c.down.Swap(true)
	case errors.Is(err, xsk.ErrGone), errors.Is(err, xsk.ErrQueueGone):
		return c.fail(err)
	}
	return false
}

// fail makes the lane use its UDP socket for the given reason. It returns false if there was another reason before.
func (c *laneSocket) fail(reason error) bool { return c.failure.CompareAndSwap(nil, &reason) }

// err returns the reason why the lane socket does not work, or nil.
func (c *laneSocket) err() error {
	switch failure := c.failure.Load(); {
	case failure != nil:
		return *failure
	case c.down.Load():
		return xsk.ErrDown
	}
	return nil
}

// recordEmpty records that a receive found nothing. Only the receiving goroutine calls it.
func (c *laneSocket) recordEmpty() {
	if !c.lastFrame.Load() {
		return
	}
	select {
	case <-c.empty:
	default:
		close(c.empty)
	}
}

// retire closes the socket once both goroutines have left it. The lane must no longer have it as its lane socket, and
// must have been woken. retire returns the socket's last counters, and the number of frames submitted but never sent.
func (c *laneSocket) retire() (stats xsk.Stats, lost int, err error) {
	c.rx.Close()
	c.tx.Close()
	lost = c.socket.Pending()
	err = c.socket.Close()
	stats, _ = c.socket.Stats() // no error after Close
	return stats, lost, err
}
