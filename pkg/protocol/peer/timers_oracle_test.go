// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"math/rand/v2"
	"testing"
)

// eagerTimers is the reference model of Timers and Activity: real timers, set and deleted at each event, as the paper (§6)
// describes. A timer is the instant at which it fires, 0 when it is not set.
type eagerTimers struct {
	retransmit, newHandshake, keepalive, persistent, zeroKeys int64

	interval, attempts, lastInitiation, jitter int64
}

func (e *eagerTimers) traversal(now int64) {
	if e.interval != 0 {
		e.persistent = now + e.interval
	}
}

func (e *eagerTimers) sent(now int64, data bool) {
	e.traversal(now)
	e.keepalive = 0
	if data && e.newHandshake == 0 {
		e.newHandshake = now + 15*sec
	}
}

func (e *eagerTimers) received(now int64, data bool) {
	e.traversal(now)
	e.newHandshake = 0
	if data && e.keepalive == 0 {
		e.keepalive = now + 10*sec
	}
}

func (e *eagerTimers) wanted(now int64) bool {
	e.attempts = now
	return e.retransmit == 0 && (e.lastInitiation == 0 || now >= e.lastInitiation+5*sec)
}

func (e *eagerTimers) initiated(now, jitter int64) {
	e.sent(now, false)
	e.lastInitiation, e.jitter = now, jitter
	e.retransmit = now + 5*sec + jitter
}

func (e *eagerTimers) complete(now int64) {
	e.retransmit = 0
	e.zeroKeys = now + 540*sec
}

func (e *eagerTimers) setInterval(now, interval int64) {
	switch {
	case interval == 0:
		e.persistent = 0
	case e.interval == 0:
		e.persistent = now
	case e.persistent > now:
		e.persistent += interval - e.interval
	}
	e.interval = interval
}

func elapsed(timer *int64, now int64) bool {
	if *timer == 0 || *timer > now {
		return false
	}
	*timer = 0
	return true
}

func (e *eagerTimers) tick(now int64) (actions Actions) {
	if elapsed(&e.zeroKeys, now) {
		actions |= EraseSessions
	}
	if elapsed(&e.retransmit, now) {
		if now-e.attempts >= 90*sec {
			actions |= GiveUp
			e.keepalive = 0
			if e.zeroKeys == 0 {
				e.zeroKeys = now + 540*sec
			}
		} else {
			actions |= SendInitiation | ClearSource
			e.retransmit = now + 5*sec
		}
	}
	if elapsed(&e.newHandshake, now-e.jitter) {
		actions |= ClearSource
		if e.wanted(now) {
			actions |= SendInitiation
		}
	}
	if elapsed(&e.keepalive, now) {
		actions |= SendKeepalive
	}
	if elapsed(&e.persistent, now) {
		actions |= SendKeepalive
		e.persistent = now + e.interval
	}
	return actions
}

// duel runs both models through the same events, one per 100 ms at most, which is as fine as an Activity is exact.
type duel struct {
	t     *testing.T
	r     *rand.Rand
	now   int64
	next  int64 // the last result of the lazy timers' Next
	lazy  Timers
	act   Activity
	eager eagerTimers
	fired int
	woken int
}

func (d *duel) step() {
	d.now += activityStep
	want, got := d.eager.tick(d.now), Actions(0)
	if d.next != 0 && d.next <= d.now {
		got = d.lazy.Fire(d.now, &d.act)
		d.next = d.lazy.Next(d.now, &d.act)
	}
	if got != want {
		d.t.Fatalf("after %d ms: lazy timers did %v, want %v as the reference", (d.now-t0)/ms, got, want)
	}
	if got != 0 {
		d.fired++
	}
	d.apply(got)
}

func (d *duel) apply(actions Actions) {
	if actions.Has(SendInitiation) {
		d.initiate()
	}
	if actions.Has(SendKeepalive) {
		d.send(false)
	}
}

func (d *duel) send(data bool) {
	d.act.Sent(d.now, data)
	d.eager.sent(d.now, data)
}

func (d *duel) receive(data bool) {
	d.act.Received(d.now, data)
	d.eager.received(d.now, data)
}

func (d *duel) initiate() {
	jitter := d.r.Int64N(4) * activityStep
	d.act.Sent(d.now, false)
	d.lazy.InitiationSent(d.now, jitter)
	d.eager.initiated(d.now, jitter)
	d.updateNext()
}

// updateNext does what a device does after an event of the control side.
func (d *duel) updateNext() { d.next = d.lazy.Next(d.now, &d.act) }

// Wake is what it does when an event of lanes wakes it.
func (d *duel) Wake() {
	d.woken++
	d.updateNext()
}

// event lets lanes exchange data only while there are keys.
func (d *duel) event() {
	switch n := d.r.IntN(100); {
	case n < 20 && d.eager.zeroKeys != 0:
		d.send(d.r.IntN(3) > 0)
	case n < 40 && d.eager.zeroKeys != 0:
		d.receive(d.r.IntN(3) > 0)
	case n < 60:
		d.want()
	case n < 75 && d.eager.retransmit != 0:
		d.lazy.SessionDerived(d.now)
		d.lazy.HandshakeComplete()
		d.eager.complete(d.now)
		d.updateNext()
	case n < 78:
		seconds := uint16(d.r.IntN(3) * d.r.IntN(60))
		d.lazy.SetKeepalive(seconds)
		d.eager.setInterval(d.now, int64(seconds)*sec)
		d.updateNext()
	}
}

func (d *duel) want() {
	got, want := d.lazy.HandshakeWanted(d.now), d.eager.wanted(d.now)
	if got != want {
		d.t.Fatalf("after %d ms: HandshakeWanted = %v, want %v as the reference", (d.now-t0)/ms, got, want)
	}
	d.updateNext()
	if got {
		d.initiate()
	}
}

func TestTimersMatchEagerOracle(t *testing.T) {
	fired, woken := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		d := &duel{t: t, r: r, now: t0}
		d.act.Waker = d
		busy := 1 + r.IntN(400) // one event in so many steps
		for range 30_000 {
			d.step()
			if r.IntN(busy) == 0 {
				d.event()
			}
		}
		fired += d.fired
		woken += d.woken
	}
	if fired < 1000 || woken < 1000 {
		t.Errorf("got %d actions and %d wakes in all, want 1000 of each for the test to mean something", fired, woken)
	}
}
