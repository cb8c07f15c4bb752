// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync/atomic"
)

// progress shows others whether a loop of a lane, or its transmit queue, makes progress. Only the loop changes it, at most twice per batch.
type progress struct{ n atomic.Uint64 } // odd while there is something to do; each piece of work has another number

// Work records that the loop has received a batch, or that another held run of the queue is the oldest.
func (p *progress) Work() { p.n.Store((p.n.Load() + 1) | 1) }

// Rest records that the loop waits for packets, or that the queue holds no run.
func (p *progress) Rest() { p.n.Store((p.n.Load() + 1) &^ 1) }

// Progress is the state of one loop of a lane, or of its transmit queue.
type Progress uint64

// Working reports whether the loop handles a batch, or the queue holds a run that a full send buffer refused. If a later Progress is the same,
// it is still that batch, or that run.
func (p Progress) Working() bool { return p&1 != 0 }

// Progress returns the state of the transmit loop, of the receive loop and of the transmit queue of a lane. Each send buffer for which anything
// waits has refused a run that is held, and held runs are tried again in order. So a send buffer that never has room again ends the
// progress of the queue, also if the others go on.
func (l *Lane) Progress() (tx, rx, queue Progress) {
	s := &l.Stats
	return Progress(s.Tx.Progress.n.Load()), Progress(s.Rx.Progress.n.Load()), Progress(s.Held.n.Load())
}
