// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"sync/atomic"
	"time"
)

const (
	// coarseStep is the resolution of an Activity's last instants.
	coarseStep = int64(100 * time.Millisecond)
	// flipLimit is how often Sent may change owed and unanswered within coarseStep.
	flipLimit = 64
)

// Activity is what lanes tell the timers about a peer's traffic. Any goroutine may call any method at any time. Lanes
// call Sent and Received once per train; only authenticated messages count. The zero Activity has seen nothing.
//
// Two waits matter: data that was sent and not answered, and data that was received and not answered. A busy exchange
// begins and ends both with every train, and if each were written down, all lanes would fight over one cache line. So
// Sent, which alone can end a wait for our answer or begin one for the peer's, stops doing either after flipLimit changes
// in 100 ms. Then both states rest, and lanes only load, until the next 100 ms begin. When traffic ends in the midst of
// such a burst, the error is on the harmless side: at most one keepalive that was not needed, or a wait that begins only
// with the next train sent. Slower exchanges are exact.
//
// A Sent and a Received that run at the same moment may be seen in either order. The peer sees them a round trip apart.
type Activity struct {
	// Waker, if set, is told of a wait that begins while the timers are not going to look before it ends. Set it before the
	// first event.
	Waker Waker

	unanswered atomic.Int64 // when the first data was sent after which nothing was received, or 0
	owed       atomic.Int64 // when the first data was received after which nothing was sent, or 0
	sent       atomic.Int64 // at most coarseStep before anything was last sent
	received   atomic.Int64 // the same for received
	stepStart  atomic.Int64 // the present 100 ms of Sent's changes
	flips      atomic.Int32 // how many there were
	asleep     atomic.Bool  // the timers do not look for longer than KeepaliveTimeout
}

// Waker is the owner of timers.
type Waker interface {
	// Wake asks for a call of Timers.Next, soon. It is called by whoever notes traffic and must not block. That happens at
	// most twice in KeepaliveTimeout, however busy the traffic is.
	Wake()
}

// Sent notes that something authenticated was handed to the network; data tells whether any of it was more than a
// keepalive or a handshake message.
func (a *Activity) Sent(now int64, data bool) {
	stamp(&a.sent, now)
	if a.owed.Load() != 0 && a.mayFlip(now) {
		a.owed.Store(0)
	}
	if data && a.unanswered.Load() == 0 && a.mayFlip(now) {
		a.unanswered.Store(now)
		a.wake()
	}
}

// Received notes that something authenticated came from the peer; data tells whether any of it was a non-empty data
// message. Only that obliges us to answer: two peers that answered keepalives would never stop.
func (a *Activity) Received(now int64, data bool) {
	stamp(&a.received, now)
	if a.unanswered.Load() != 0 {
		a.unanswered.Store(0)
	}
	if data && a.owed.Load() == 0 {
		a.owed.Store(now)
		a.wake()
	}
}

// wake comes after a wait was noted, and Timers.Next notes that it sleeps before it looks for waits: one sees the other.
func (a *Activity) wake() {
	if a.asleep.Load() && a.asleep.CompareAndSwap(true, false) && a.Waker != nil {
		a.Waker.Wake()
	}
}

// LastSent is when something was last sent, at most 100 ms too early, or 0.
func (a *Activity) LastSent() int64 { return a.sent.Load() }

// LastReceived is when something authenticated was last received, at most 100 ms too early, or 0.
func (a *Activity) LastReceived() int64 { return a.received.Load() }

// settle ends both waits, and wakes nobody from now on.
func (a *Activity) settle() {
	a.asleep.Store(false)
	a.unanswered.Store(0)
	a.owed.Store(0)
}

// mayFlip counts one change of this 100 ms, and refuses when there were flipLimit. Concurrent calls may exceed the limit
// by their number.
func (a *Activity) mayFlip(now int64) bool {
	if now-a.stepStart.Load() >= coarseStep {
		a.stepStart.Store(now)
		a.flips.Store(1)
		return true
	}
	if a.flips.Load() >= flipLimit {
		return false
	}
	a.flips.Add(1)
	return true
}

func stamp(last *atomic.Int64, now int64) {
	if l := last.Load(); l == 0 || now-l >= coarseStep {
		last.Store(now)
	}
}
