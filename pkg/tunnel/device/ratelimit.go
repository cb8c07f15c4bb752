// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// eventsPerPeriod is the limit of each rate: hellos of one peer in a second; port plans for one peer in a minute, as each
// may move the flows of all peers with its address to other lanes; and log messages of one kind in a minute.
const eventsPerPeriod = 8

// rate allows eventsPerPeriod events in each period.
type rate struct{ state atomic.Uint64 } // number of the period << 8 | events

func (r *rate) allow(now int64, period time.Duration) bool {
	return r.allowUpTo(eventsPerPeriod, now, period)
}

// allowUpTo is allow with another limit, at most 200.
func (r *rate) allowUpTo(limit uint64, now int64, period time.Duration) bool {
	number := uint64(now/int64(period)) << 8
	state := r.state.Load()
	if state&^0xff != number {
		r.state.Store(number | 1) // two callers that start a period at the same time count as one
		return true
	}
	return state&0xff < limit && r.state.Add(1)&0xff <= limit
}

// refusals bounds the log messages about rejected handshakes, since anybody can send those.
type refusals struct {
	rate       rate
	noted      rate          // searches for the peer of an endpoint
	suppressed atomic.Uint64 // rejected without a log message since the last one
}

// logRefusal logs a rejected handshake message, at a limited rate, and returns the reason. key is the sender's public key,
// which may not be authentic; zero if unknown.
func (d *Device) logRefusal(reason drop.Reason, from underlay.Endpoint, key noise.PublicKey) drop.Reason {
	if !d.refusals.rate.allow(d.clock(), time.Minute) {
		d.refusals.suppressed.Add(1)
		return reason
	}
	log := d.log
	if !key.IsZero() {
		log = log.With("peer", key)
	}
	if n := d.refusals.suppressed.Swap(0); n > 0 {
		log = log.With("suppressed", n)
	}
	log.Info("handshake message refused and dropped", "reason", reason.String(), "endpoint", from.Dst)
	return reason
}
