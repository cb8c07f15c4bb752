// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
)

var _ peer.Waker = (*Peer)(nil)

const (
	// coalesceAfter is the minimum time, in ns, until a deadline that is coalesced with others. Deadlines of handshake retries, which are
	// jittered on purpose, and of hellos are less than that away, so they keep their instants.
	coalesceAfter = int64(8 * time.Second)
	// slack is the granularity of coalesced timers, 2^28 ns or 268 ms. Peers with deadlines close together wake the machine once.
	// Linux's timer wheel may delay a timer of 10 s by as much.
	slack = int64(1) << 28
)

// timerState holds the timers of a peer. Peer.mu guards it.
type timerState struct {
	peer.Timers
	timer      *time.Timer // nil while no timer is set
	keepalive  uint16      // persistent keepalive interval, in seconds
	retries    int32       // how many times the initiation of a renewal was repeated
	initiateAt int64       // when a deferred handshake may start, 0 for never
	retryAt    int64       // when it is repeated again (renew.go), 0 for never
}

// coalesce returns the instant at which the timer for a deadline fires.
func coalesce(now, deadline int64) int64 {
	if deadline-now < coalesceAfter {
		return deadline
	}
	return (deadline + slack - 1) &^ (slack - 1)
}

// armTimer sets the timer to the peer's next deadline, or stops it if there is none. The caller holds mu.
func (p *Peer) armTimer(now int64) {
	p.noteChange() // whatever has led here
	t := &p.timers
	next := t.Next(now, &p.engine.Activity)
	for _, deadline := range []int64{p.nextHello(), p.nextProbe(now), p.mtu.known.next(), p.path.roams.nextTimer(), t.initiateAt, t.retryAt, p.quantum.machine.Load().Next(p.sessions.inUse(), now)} {
		if deadline != 0 && (next == 0 || deadline < next) {
			next = deadline
		}
	}
	if next == 0 {
		p.stopTimer()
		return
	}
	// Not 0: Go 1.26 crashes under the race detector if two goroutines of a synctest bubble set timers that are due already.
	wait := time.Duration(max(coalesce(now, next)-now, 1))
	if t.timer == nil {
		t.timer = time.AfterFunc(wait, p.Wake)
	} else {
		t.timer.Reset(wait)
	}
}

// nextHello returns when runHelloTimer is due, 0 for never. The caller holds mu.
func (p *Peer) nextHello() int64 {
	if p.path.roams.due.Load() {
		return 0
	}
	return p.hello.nextTimer()
}

// stopTimer releases the timer. If it has fired already, a worker finds that nothing is due. The caller holds mu.
func (p *Peer) stopTimer() {
	if p.timers.timer != nil {
		p.timers.timer.Stop()
		p.timers.timer = nil
	}
}

// ClockJumped evaluates all timers that are set. Call it after the machine was suspended: Go's timers stop during a suspend, while
// Config.Clock may go on, so keys would be erased late.
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
