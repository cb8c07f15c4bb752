// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/internal/fdguard"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// laneSocket is one AF_XDP socket in use by a lane. The keeper makes and ends it; each gate is for one goroutine of the lane.
type laneSocket struct {
	socket  *xsk.Socket
	device  int
	rx, tx  fdguard.Guard
	offload bool // of UDP checksums
	// down says that nothing can be sent until the device is up.
	down atomic.Bool
	// failure says why the socket is of no more use.
	failure atomic.Pointer[error]
	// ending says that what has arrived goes first, and final that no more frames come: empty is closed after the last.
	ending, final atomic.Bool
	empty         chan struct{}
}

func newLaneSocket(s *xsk.Socket, d *device) *laneSocket {
	f := s.Features()
	return &laneSocket{
		socket: s, device: d.index, rx: fdguard.New(), tx: fdguard.New(), offload: offloads(&f, d.completes), empty: make(chan struct{}),
	}
}

// offloads reports whether checksums may be asked for: without copies the driver says so itself (Features), with copies
// completesChecksums.
func offloads(f *xsk.Features, completes bool) bool {
	return f.TxChecksum && (f.Mode == xsk.ZeroCopy || completes)
}

// works reports whether the circuit can carry anything.
func (c *laneSocket) works() bool { return !c.down.Load() && c.failure.Load() == nil }

// holds reports whether the kernel left frames where they are, as it does in copy mode when the device's queue is full. A driver
// without copies fetches them itself. Any goroutine in one of the gates may ask.
func (c *laneSocket) holds() bool {
	return c.socket.Features().Mode != xsk.ZeroCopy && c.socket.Pending() > 0
}

// recordError notes an error of the socket, and reports whether the keeper has something to do about it. Errors that may pass are not
// noted.
func (c *laneSocket) recordError(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, xsk.ErrDown):
		return !c.down.Swap(true)
	case errors.Is(err, xsk.ErrGone), errors.Is(err, xsk.ErrQueueGone):
		reason := err // so that err stays on the stack
		return c.failure.CompareAndSwap(nil, &reason)
	}
	return false
}

// err is why the circuit does not work, nil if it does.
func (c *laneSocket) err() error {
	switch failure := c.failure.Load(); {
	case failure != nil:
		return *failure
	case c.down.Load():
		return xsk.ErrDown
	}
	return nil
}

// drained notes that a receiver found nothing, and is called by the receiving goroutine alone.
func (c *laneSocket) drained() {
	if !c.final.Load() {
		return
	}
	select {
	case <-c.empty:
	default:
		close(c.empty)
	}
}

// retire ends the circuit once both goroutines have left it. They must have been told to: a lane that has no circuit any more
// leaves when its bell rings. It returns the socket's last counters, and how many frames were submitted and never sent.
func (c *laneSocket) retire() (stats xsk.Stats, lost int, err error) {
	c.rx.Close()
	c.tx.Close()
	lost = c.socket.Pending()
	err = c.socket.Close()
	stats, _ = c.socket.Stats() // they do not fail once it is closed
	return stats, lost, err
}
