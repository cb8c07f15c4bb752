// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
)

var _ peer.Waker = (*Peer)(nil)

const (
	// coalesceAfter is the least time, in ns, to a deadline that may be coalesced with others. Handshake retries, which are
	// jittered on purpose, and hellos are nearer.
	coalesceAfter = int64(8 * time.Second)
	// slack is the granularity, in ns, of coalesced timers; a power of two. Peers with deadlines close together wake the
	// machine once. Linux's timer wheel may delay a timer of 10 s as long.
	slack = int64(1) << 28
)

// timerState holds the timers of a peer. Peer.mu guards it.
type timerState struct {
	peer.Timers
	timer      *time.Timer // nil while no timer is set
	keepalive  uint16      // persistent keepalive interval, in seconds
	initiateAt int64       // when a deferred handshake may start, 0 for never
	retryAt    int64       // when a resumed device repeats its handshake, 0 for never
	retries    int         // how often it did
}

// coalesce returns when a timer for the instant at should fire.
func coalesce(now, at int64) int64 {
	if at-now < coalesceAfter {
		return at
	}
	return (at + slack - 1) &^ (slack - 1)
}

// armTimer sets the timer to the peer's next deadline, or stops it if there is none. The caller holds mu.
func (p *Peer) armTimer(now int64) {
	t := &p.timers
	next := t.Next(now, &p.engine.Activity)
	for _, at := range []int64{p.hello.nextTimer(), p.nextProbe(now), p.nextCheck(), p.mtu.known.next(), t.initiateAt, t.retryAt} {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	if next == 0 {
		p.stopTimer()
		return
	}
	p.noteChange()
	wait := time.Duration(max(coalesce(now, next)-now, 0))
	if t.timer == nil {
		t.timer = time.AfterFunc(wait, p.Wake)
	} else {
		t.timer.Reset(wait)
	}
}

// stopTimer releases the timer. It may have fired already, which does no harm. The caller holds mu.
func (p *Peer) stopTimer() {
	if p.timers.timer != nil {
		p.timers.timer.Stop()
		p.timers.timer = nil
	}
}

// ClockJumped evaluates all timers that are set. Call it after the machine was suspended: Go's timers stop meanwhile, but
// Config.Clock may not, and keys would be erased late.
func (d *Device) ClockJumped() {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.mu.Lock()
		armed := p.timers.timer != nil
		p.mu.Unlock()
		if armed {
			p.Wake()
		}
	}
}
