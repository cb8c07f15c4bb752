// SPDX-License-Identifier: Apache-2.0

package peer

import "time"

// Timers decides when a peer is to be sent a handshake or a keepalive, when to stop trying and when to erase its keys
// (WireGuard paper, §6). Its owner calls one method at a time; the zero Timers is that of a new peer, running.
//
// It is lazy. Traffic resets no timer: lanes note it in an Activity, and Timers looks at that when something might be due.
// Call Fire when the instant that Next gave has come (earlier does no harm) and do what it says; call Next again after
// Fire, after each event, and when the Activity's Waker is told to. That happens when traffic begins a wait and Next is
// further away than KeepaliveTimeout, which is the shortest there is: so nothing ticks while there is no traffic, and
// while there is, lanes hardly ever wake anyone.
type Timers struct {
	retryAt        int64 // when the handshake in flight is retried; 0 when there is none
	eraseAt        int64 // when keys are erased; 0 when there are none
	attemptSince   int64 // when the handshake in flight was last wanted
	lastInitiation int64 // when an initiation or response was last sent
	jitter         int64 // of the last initiation

	keepaliveEvery int64 // the persistent keepalive's interval; 0 when off
	keepaliveFrom  int64 // when it was last due
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
	return t.next(now, a) // a wait that has begun meanwhile may have woken nobody
}

func (t *Timers) next(now int64, a *Activity) int64 {
	at := earliest(t.retryAt, t.eraseAt)
	if due := t.hearBackDue(a); due != 0 {
		// A keepalive ends this wait, and the next train begins it anew: who looks sooner need not be told each time.
		at = earliest(at, min(due, now+KeepaliveTimeout))
	}
	at = earliest(at, passiveDue(a))
	return earliest(at, t.persistentDue(now, a))
}

// Fire returns what is due.
func (t *Timers) Fire(now int64, a *Activity) Actions {
	if t.stopped {
		return 0
	}
	return t.fireErase(now) | t.fireRetry(now, a) | t.fireHearBack(now, a) | t.fireKeepalive(now, a)
}

// HandshakeWanted notes that a session is needed: a packet to send found none, or RekeyDue holds. It tells whether to
// send an initiation now; the caller then does, and calls InitiationSent. It does not hold while a handshake is in flight
// or within RekeyTimeout of the last initiation. A handshake in flight gets RekeyAttemptTime anew (§6.4).
func (t *Timers) HandshakeWanted(now int64) bool {
	t.attemptSince = now
	return !t.stopped && t.retryAt == 0 && (t.lastInitiation == 0 || now-t.lastInitiation >= RekeyTimeout)
}

// InitiationSent notes that an initiation was sent, or was to be sent and had nowhere to go: it is retried either way,
// after RekeyTimeout and jitter, a random time from 0 to MaxJitter (§6.4).
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

// ResponseSent notes that a responder has made a session and answered; the peer has yet to confirm it. An answer counts
// as an initiation: we do not send one of our own within RekeyTimeout.
func (t *Timers) ResponseSent(now int64) {
	if t.stopped {
		return
	}
	t.lastInitiation = now
	t.SessionDerived(now)
}

// SessionDerived notes that there are keys from now on.
func (t *Timers) SessionDerived(now int64) {
	if !t.stopped {
		t.eraseAt = now + eraseTimeout
	}
}

// HandshakeComplete notes that a session is ready for sending: an initiator has received a valid response, or a
// responder the first data message. It ends the retries.
func (t *Timers) HandshakeComplete(now int64) {
	t.retryAt, t.attemptSince = 0, 0
	t.SessionDerived(now)
}

// SetKeepalive sets the persistent keepalive's interval, 0 for off. Turning it on makes one due at once, so that a
// NAT's mapping is there from now on (§6.5).
func (t *Timers) SetKeepalive(seconds uint16) {
	every := int64(seconds) * int64(time.Second)
	t.keepaliveNow = every != 0 && (t.keepaliveNow || t.keepaliveEvery == 0)
	t.keepaliveEvery = every
}

// Stop disarms everything, because the interface went down; the owner wipes the sessions. The interval stays.
func (t *Timers) Stop(a *Activity) {
	*t = Timers{keepaliveEvery: t.keepaliveEvery, stopped: true}
	a.settle()
}

// Start undoes Stop. A persistent keepalive is due at once.
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

// fireRetry arms the next retry by itself, in case that the initiation cannot even be made.
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

// fireHearBack asks for a new handshake when data that was sent met with silence. The next data sent begins a new wait.
func (t *Timers) fireHearBack(now int64, a *Activity) Actions {
	if !due(t.hearBackDue(a), now) {
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
	passive, persistent := due(passiveDue(a), now), due(t.persistentDue(now, a), now)
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

// hearBackDue is when data sent without anything received after it calls for a new handshake.
func (t *Timers) hearBackDue(a *Activity) int64 {
	return after(a.unanswered.Load(), hearBackTimeout+t.jitter)
}

// passiveDue is when data received without anything sent after it calls for a keepalive.
func passiveDue(a *Activity) int64 { return after(a.owed.Load(), KeepaliveTimeout) }

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

// after is d after the instant at, 0 if at is.
func after(at, d int64) int64 {
	if at == 0 {
		return 0
	}
	return at + d
}

// earliest is the earlier instant of those that are not 0.
func earliest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func due(at, now int64) bool { return at != 0 && at <= now }
