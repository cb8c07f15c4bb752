// SPDX-License-Identifier: Apache-2.0

package peer

import "time"

// Timers decides when a peer is sent a handshake or a keepalive, when to stop trying, and when to
// erase its keys (WireGuard paper, §6). Its owner calls one method at a time. The zero Timers is
// ready for a new peer, and runs.
//
// Traffic resets no timer: lanes record it in an Activity, and Timers checks that when an action might be due. Call
// Fire at the instant that Next returned (earlier is harmless) and take the returned actions. Call Next again after
// Fire, after each event, and when the Activity calls its Waker. It does so when traffic begins a wait while Next is
// further away than KeepaliveTimeout, the shortest wait. So nothing ticks without traffic, and busy lanes rarely wake
// the owner.
type Timers struct {
	retryAt        int64 // the next retry of the handshake in flight; 0 when there is none
	eraseAt        int64 // the erasure of keys; 0 when there are none
	attemptSince   int64 // the last HandshakeWanted for the handshake in flight
	lastInitiation int64 // the last initiation or response sent
	jitter         int64 // of the last initiation

	keepaliveEvery int64 // the persistent keepalive's interval; 0 when off
	keepaliveFrom  int64 // the instant when it was last due
	keepaliveNow   bool  // it was just turned on
	stopped        bool
}

// Next returns when to call Fire, 0 for "not before the next event". It may lie in the past.
func (t *Timers) Next(now int64, a *Activity) int64 {
	if t.stopped {
		return 0
	}
	at := t.next(now, a)
	near := at != 0 && at-now <= KeepaliveTimeout
	a.asleep.Store(!near)
	if near {
		return at
	}
	return t.next(now, a) // a wait that began meanwhile may not have called the Waker
}

func (t *Timers) next(now int64, a *Activity) int64 {
	at := earliest(t.retryAt, t.eraseAt)
	if due := t.newHandshakeDue(a); due != 0 {
		// A keepalive ends this wait and the next train begins it again. An earlier check avoids a wakeup each time.
		at = earliest(at, min(due, now+KeepaliveTimeout))
	}
	at = earliest(at, passiveKeepaliveDue(a))
	return earliest(at, t.persistentDue(now, a))
}

// Retries reports whether an initiation will be sent again unless a handshake completes before.
func (t *Timers) Retries() bool { return t.retryAt != 0 }

// Fire returns the actions that are due.
func (t *Timers) Fire(now int64, a *Activity) Actions {
	if t.stopped {
		return 0
	}
	return t.fireErase(now) | t.fireRetry(now, a) | t.fireNewHandshake(now, a) | t.fireKeepalive(now, a)
}

// HandshakeWanted records that a session is needed: a packet to send found none, or RekeyDue returned true. It
// reports whether to send an initiation now; if so, the caller sends it and calls InitiationSent. It returns false
// while a handshake is in flight or within RekeyTimeout of the last initiation. A handshake in flight gets another
// RekeyAttemptTime (§6.4).
func (t *Timers) HandshakeWanted(now int64) bool {
	t.attemptSince = now
	return !t.stopped && t.retryAt == 0 && (t.lastInitiation == 0 || now-t.lastInitiation >= RekeyTimeout)
}

// InitiationSent records that an initiation was sent, or could not be sent for lack of an
// endpoint. It is retried either way, after RekeyTimeout and jitter, a random time from 0 to
// MaxJitter (§6.4).
func (t *Timers) InitiationSent(now, jitter int64) {
	if t.stopped {
		return
	}
	if t.attemptSince == 0 {
		t.attemptSince = now
	}
	t.jitter = min(max(jitter, 0), MaxJitter)
	t.lastInitiation = now
	t.retryAt = now + RekeyTimeout + t.jitter
}

// ResponseSent records that a responder has created a session and sent the response; the peer has yet to confirm it.
// A response counts as an initiation: none is sent within RekeyTimeout of it.
func (t *Timers) ResponseSent(now int64) {
	if t.stopped {
		return
	}
	t.lastInitiation = now
	t.SessionDerived(now)
}

// SessionDerived records that a session's keys were derived.
func (t *Timers) SessionDerived(now int64) {
	if !t.stopped {
		t.eraseAt = now + eraseTimeout
	}
}

// HandshakeComplete records that a session is ready for sending: an initiator has received a valid response, or a
// responder the first data message. HandshakeComplete ends the retries.
func (t *Timers) HandshakeComplete() { t.retryAt, t.attemptSince = 0, 0 }

// IdentityReplaced records that handshakes so far used another private key. A handshake in flight
// begins again at the next Fire, and the next one waits for no RekeyTimeout.
func (t *Timers) IdentityReplaced(now int64) {
	t.lastInitiation = 0
	if t.retryAt != 0 {
		t.retryAt = now
	}
}

// SetKeepalive sets the persistent keepalive's interval, 0 for off. Enabling it makes a keepalive due at once, which
// opens a NAT mapping (§6.5).
func (t *Timers) SetKeepalive(seconds uint16) {
	every := int64(seconds) * int64(time.Second)
	t.keepaliveNow = every != 0 && (t.keepaliveNow || t.keepaliveEvery == 0)
	t.keepaliveEvery = every
}

// Stop disarms all timers when the interface goes down; the owner wipes the sessions. The keepalive interval stays.
func (t *Timers) Stop(a *Activity) {
	*t = Timers{keepaliveEvery: t.keepaliveEvery, stopped: true}
	a.reset()
}

// Start reverses Stop. A persistent keepalive is due at once.
func (t *Timers) Start() {
	t.keepaliveNow = t.keepaliveEvery != 0
	t.stopped = false
}

func (t *Timers) fireErase(now int64) Actions {
	if !due(t.eraseAt, now) {
		return 0
	}
	t.eraseAt = 0
	return EraseSessions
}

// fireRetry arms the next retry itself, in case the initiation cannot be created.
func (t *Timers) fireRetry(now int64, a *Activity) Actions {
	if !due(t.retryAt, now) {
		return 0
	}
	if now-t.attemptSince >= RekeyAttemptTime {
		t.retryAt, t.attemptSince = 0, 0
		t.eraseAt = earliest(t.eraseAt, now+eraseTimeout)
		a.owed.Store(0)
		return GiveUp
	}
	t.retryAt = now + RekeyTimeout
	return SendInitiation | ClearSource
}

// fireNewHandshake starts a new handshake when sent data got no reply. The next data sent begins a new wait.
func (t *Timers) fireNewHandshake(now int64, a *Activity) Actions {
	if !due(t.newHandshakeDue(a), now) {
		return 0
	}
	a.unanswered.Store(0)
	if !t.HandshakeWanted(now) {
		return ClearSource
	}
	t.retryAt = now + RekeyTimeout
	return SendInitiation | ClearSource
}

func (t *Timers) fireKeepalive(now int64, a *Activity) Actions {
	passive, persistent := due(passiveKeepaliveDue(a), now), due(t.persistentDue(now, a), now)
	if passive {
		a.owed.Store(0)
	}
	if persistent {
		t.keepaliveFrom, t.keepaliveNow = now, false
	}
	if passive || persistent {
		return SendKeepalive
	}
	return 0
}

// newHandshakeDue is the instant at which sent data without a reply requires a new handshake, 0 for none.
func (t *Timers) newHandshakeDue(a *Activity) int64 {
	return after(a.unanswered.Load(), newHandshakeTimeout+t.jitter)
}

// passiveKeepaliveDue is the instant at which received data without a reply requires a keepalive, 0 for none.
func passiveKeepaliveDue(a *Activity) int64 { return after(a.owed.Load(), KeepaliveTimeout) }

func (t *Timers) persistentDue(now int64, a *Activity) int64 {
	switch {
	case t.keepaliveEvery == 0:
		return 0
	case t.keepaliveNow:
		return now
	default:
		return max(t.keepaliveFrom, a.LastSent(), a.LastReceived()) + t.keepaliveEvery
	}
}

// after returns at+d, or 0 if at is 0.
func after(at, d int64) int64 {
	if at == 0 {
		return 0
	}
	return at + d
}

// earliest returns the earlier of the instants that are not 0.
func earliest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func due(at, now int64) bool { return at != 0 && at <= now }
