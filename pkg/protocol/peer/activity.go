// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"sync/atomic"
	"time"
)

const (
	// activityStep is the resolution of LastSent and LastReceived, in nanoseconds.
	activityStep = int64(100 * time.Millisecond)
	// changeLimit bounds Sent's changes of owed and unanswered within activityStep.
	changeLimit = 64
)

// Activity records a peer's traffic for its timers. Any goroutine may call any method at any time. Lanes call Sent
// and Received once per train; only authenticated messages count. The zero Activity has recorded nothing.
//
// Two waits matter: sent data without a reply, and received data without a reply. A busy exchange
// begins and ends both with every train. If each were stored, all lanes would contend for one
// cache line. So Sent, which alone can end a wait for our reply or begin one for the peer's, stops
// doing either after changeLimit changes in 100 ms. Lanes then only load both states until the
// next 100 ms begin. When traffic ends within such a burst, the harm is at most one unnecessary
// keepalive, or a wait that begins only with the next train. Slower exchanges are exact.
//
// Concurrent Sent and Received may be recorded in either order. The peer sees them a round trip apart.
type Activity struct {
	// Waker, if set, is called when a wait begins that ends before the timers' next check. Set it before the first event.
	Waker Waker

	unanswered atomic.Int64 // the instant of the first data sent since the last receipt, or 0
	owed       atomic.Int64 // the instant of the first data received since the last send, or 0
	sent       atomic.Int64 // the instant of the last send, at most activityStep too early
	received   atomic.Int64 // the same for received
	stepStart  atomic.Int64 // the start of the current 100 ms of Sent's changes
	changes    atomic.Int32 // their number
	asleep     atomic.Bool  // the timers' next check is more than KeepaliveTimeout away
}

// Waker is the owner of timers.
type Waker interface {
	// Wake requests a call of Timers.Next soon. Sent and Received call it, so it must not block. They call it at most twice
	// per KeepaliveTimeout, however busy the traffic is.
	Wake()
}

// Sent records that something authenticated was handed to the network. data reports whether that included more than
// keepalives and handshake messages.
func (a *Activity) Sent(now int64, data bool) {
	stamp(&a.sent, now)
	if a.owed.Load() != 0 && a.mayChange(now) {
		a.owed.Store(0)
	}
	if data && a.unanswered.Load() == 0 && a.mayChange(now) {
		a.unanswered.Store(now)
		a.wake()
	}
}

// SentControl records that a message was handed to the network that WireGuard does not have, such
// as the answer to a check. It stands in for no keepalive. A stateful firewall that forgot the
// session admits the peer's messages only after one of ours. One is due within KeepaliveTimeout of
// the last data that arrived. An answer that left before the firewall forgot opens nothing.
func (a *Activity) SentControl(now int64) { stamp(&a.sent, now) }

// Received records that something authenticated arrived from the peer. data reports whether that included a non-empty
// data message. Only data requires a reply: two peers that replied to keepalives would never stop.
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

// wake must follow the store of a wait. Timers.Next stores asleep before it loads the waits, so one of the two sees
// the other.
func (a *Activity) wake() {
	if a.asleep.Load() && a.asleep.CompareAndSwap(true, false) && a.Waker != nil {
		a.Waker.Wake()
	}
}

// LastSent is the instant of the last send, at most 100 ms too early, or 0.
func (a *Activity) LastSent() int64 { return a.sent.Load() }

// LastReceived is the instant of the last authenticated receipt, at most 100 ms too early, or 0.
func (a *Activity) LastReceived() int64 { return a.received.Load() }

// reset ends both waits and disables waking.
func (a *Activity) reset() {
	a.asleep.Store(false)
	a.unanswered.Store(0)
	a.owed.Store(0)
}

// mayChange counts one change in the current 100 ms. It returns false once there were changeLimit. Concurrent calls may
// exceed the limit by their number.
func (a *Activity) mayChange(now int64) bool {
	if now-a.stepStart.Load() >= activityStep {
		a.stepStart.Store(now)
		a.changes.Store(1)
		return true
	}
	if a.changes.Load() >= changeLimit {
		return false
	}
	a.changes.Add(1)
	return true
}

func stamp(last *atomic.Int64, now int64) {
	if l := last.Load(); l == 0 || now-l >= activityStep {
		last.Store(now)
	}
}
