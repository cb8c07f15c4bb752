// SPDX-License-Identifier: Apache-2.0

package workpool

import "sync/atomic"

// Stats counts the jobs of one job ring. A job that is not collected yet counts only as Submitted.
type Stats struct {
	Submitted uint64 `json:"submitted"`
	Done      uint64 `json:"done"`      // collected jobs that a worker ran
	ByLane    uint64 `json:"by_lane"`   // collected jobs that the lane ran itself
	BackOffs  uint64 `json:"back_offs"` // times that the lane stopped submitting for a while
}

// counters are the atomic form of Stats, written by the lane only.
type counters struct{ submitted, byWorkers, byLane, backOffs atomic.Uint64 }

// Stats returns a snapshot. Any goroutine may call it. Each counter is consistent, the set of them is not.
func (r *JobRing) Stats() Stats {
	return Stats{
		Submitted: r.stats.submitted.Load(), Done: r.stats.byWorkers.Load(),
		ByLane: r.stats.byLane.Load(), BackOffs: r.stats.backOffs.Load(),
	}
}
