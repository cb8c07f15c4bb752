// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/peer"
)

var _ peer.Waker = (*Peer)(nil)

const (
	// coalesceAfter is how far a moment must lie ahead, in nanoseconds, to be worth sharing: retries, which are jittered on
	// purpose, and hellos are nearer.
	coalesceAfter = int64(8 * time.Second)
	// slack is the distance, in nanoseconds, of the moments at which far timers fire; a power of two. Peers that want
	// something at about the same time wake the machine once. Linux's timer wheel lets a timer of 10 s be late by as much.
	slack = int64(1) << 28
)

// coalesce returns when to do what is due at the instant at.
func coalesce(now, at int64) int64 {
	if at-now < coalesceAfter {
		return at
	}
	return (at + slack - 1) &^ (slack - 1)
}

// Wake implements peer.Waker: traffic has begun something that the peer's timer is not set for.
func (p *Peer) Wake() { p.post(taskTimer) }

// arm sets the timer for the next moment at which something may be due; a peer that waits for nothing has none. The caller
// holds mu.
func (p *Peer) arm(now int64) {
	next := p.timers.Next(now, &p.engine.Activity)
	for _, at := range []int64{p.hello.next(), p.askAgainAt, p.insistAt} {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	if next == 0 {
		p.disarm()
		return
	}
	wait := time.Duration(max(coalesce(now, next)-now, 0))
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, p.Wake)
	} else {
		p.timer.Reset(wait)
	}
}

// disarm lets go of the timer. It may have fired already, which does no harm. The caller holds mu.
func (p *Peer) disarm() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// ClockJumped looks at all timers that are set. Call it when the machine was suspended: Go's timers have not moved
// meanwhile, as Config.Clock may have, and keys would be erased late.
func (d *Device) ClockJumped() {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.mu.Lock()
		armed := p.timer != nil
		p.mu.Unlock()
		if armed {
			p.Wake()
		}
	}
}
