// SPDX-License-Identifier: Apache-2.0

package engine

import "sync/atomic"

// progress shows others whether a loop of a lane makes progress. Only the loop changes it, at most twice per batch.
type progress struct{ n atomic.Uint64 } // odd while the loop handles a batch; each batch has another number

// work records that the loop has received a batch.
func (p *progress) work() { p.n.Store((p.n.Load() + 1) | 1) }

// rest records that the loop waits for packets.
func (p *progress) rest() { p.n.Store((p.n.Load() + 1) &^ 1) }

// Progress is the state of one loop of a lane.
type Progress uint64

// Working reports whether the loop handles a batch. If a later Progress is the same, it still handles that batch.
func (p Progress) Working() bool { return p&1 != 0 }

// Progress returns the state of the transmit and of the receive loop of a lane.
func (e *Engine) Progress(lane int) (tx, rx Progress) {
	s := &e.lanes[lane].stats
	return Progress(s.tx.progress.n.Load()), Progress(s.rx.progress.n.Load())
}
