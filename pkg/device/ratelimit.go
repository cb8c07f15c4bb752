// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// refusals bounds what is logged of handshakes that were refused: anybody can send those.
type refusals struct {
	rate       rate
	suppressed atomic.Uint64 // refused since the last line without one of their own
}

// logRefusal logs a handshake message that is not accepted, at most eventsPerPeriod a minute, and returns the reason. key is who sent
// it, or claims to have; zero when that is not known.
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
		log = log.With("unsaid", n)
	}
	log.Info("handshake refused", "reason", reason.String(), "endpoint", from.Dst)
	return reason
}
