// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// Burst is the usual limit of a Rate. It holds for hellos of one peer in a second and for log
// messages of one kind in a minute. It also holds for port plans for one peer in a minute. Each may
// move the flows of all peers with its address to other lanes.
const Burst = 8

// Rate allows some events in each period. It takes no lock, and is safe for concurrent use.
type Rate struct{ state atomic.Uint64 } // number of the period << 8 | events

// Allow reports whether an event at now, in ns, is one of the first Burst of its period.
func (r *Rate) Allow(now int64, period time.Duration) bool {
	return r.AllowUpTo(Burst, now, period)
}

// Level returns the level of a log message of a kind that peers can cause: usual for the first Burst
// in a minute, then slog.LevelDebug.
func (r *Rate) Level(now int64, usual slog.Level) slog.Level {
	if r.Allow(now, time.Minute) {
		return usual
	}
	return slog.LevelDebug
}

// AllowUpTo is Allow with another limit, at most 200.
func (r *Rate) AllowUpTo(limit uint64, now int64, period time.Duration) bool {
	number := uint64(now/int64(period)) << 8
	state := r.state.Load()
	if state&^0xff != number {
		r.state.Store(number | 1) // two callers that start a period at the same time count as one
		return true
	}
	return state&0xff < limit && r.state.Add(1)&0xff <= limit
}
