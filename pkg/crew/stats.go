// SPDX-License-Identifier: Apache-2.0

package crew

import "sync/atomic"

// Stats says what became of the work that was put on a desk. What has not been collected is in Offered alone.
type Stats struct {
	Offered   uint64 `json:"offered"`
	Done      uint64 `json:"done"`       // by workers
	TakenBack uint64 `json:"taken_back"` // and done by the lane
	BackOffs  uint64 `json:"back_offs"`  // how often the lane stopped offering for a while
}

// counters are written by the lane alone.
type counters struct{ offered, done, back, backOffs atomic.Uint64 }

// Stats returns a snapshot; it may be called by any goroutine. It is consistent per counter, not across counters.
func (d *Desk) Stats() Stats {
	return Stats{
		Offered: d.stats.offered.Load(), Done: d.stats.done.Load(),
		TakenBack: d.stats.back.Load(), BackOffs: d.stats.backOffs.Load(),
	}
}
