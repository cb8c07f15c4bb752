// SPDX-License-Identifier: Apache-2.0

package pqexchange

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

const (
	// upgradePause is the minimum time, in ns, between an initiation and the next one if a new key
	// causes it. Peers drop initiations that follow within 20 ms (peer.MinInitiationInterval).
	upgradePause = int64(25 * time.Millisecond)
	// baseGrace is the time, in ns, for which a peer that had post-quantum sessions may have others
	// before that is a downgrade. Each restart of the peer makes one.
	baseGrace = int64(30 * time.Second)
	// staleKey is the time, in ns, of sessions without a new key, from which that is reported.
	// Sessions are renewed each two minutes while there is traffic.
	staleKey = int64(10 * time.Minute)
	// blockedAfter is the time, in ns, for which a session that is required to be post-quantum may be
	// without a key before that is reported.
	blockedAfter = int64(5 * time.Second)
)

// Machine is the part of one peer in post-quantum exchanges. A nil *Machine is the part of a peer
// whose policy is off: it may be used, and does nothing. The caller's lock guards all but Policy,
// Put and Take.
type Machine struct {
	Turn pace.Turn // guarded by the lock of the pace.Turns in which it is

	policy   atomic.Uint32 // the config.PostQuantum in effect: auto, off or required
	parts    partQueue
	exchange postquantum.Exchange

	named       postquantum.Key // in the handshake in flight
	answered    bool            // the handshake in flight has counted in unfit
	unfit       int             // initiations since the last session whose responses fit no key
	initiatedAt int64           // when the last initiation was sent
	upgradeAt   int64           // when a handshake with a new key is due, 0 for never
	upgrading   bool            // it is due, or is in flight
	expireAt    int64           // when packets that wait for a post-quantum session are dropped, 0 for never
	had         time.Time       // when a session with a key was last confirmed; zero for never, or if that was forgotten
	baseSince   int64           // since when sessions have no key, 0 for not
	warned      bool            // of it
	lost        bool            // the peer had keys, and has lost them
	since       int64           // when the first session after End began, 0 without one
}

// Session is the current session of a peer. The zero Session is none.
type Session struct {
	Exchange *postquantum.Session
	Keys     *session.Keypair
}

func (s Session) usable(now int64) bool { return s.Keys.Usable(now) }

// hasKey reports whether the session was keyed with the key of an exchange.
func (s Session) hasKey() bool { return s.Exchange != nil && s.Exchange.Key().Named }

// Restricted reports whether the session is in use and carries no data.
func (s Session) Restricted(now int64) bool { return s.usable(now) && s.Keys.Restricted() }

// Actions are the actions that the owner of a Machine takes after an event.
type Actions struct {
	postquantum.Actions
	Message   []byte // of Send
	LeaveTurn bool
	Expire    bool // drop the packets that wait for a session that carries data
	Downgrade bool // sessions had keys and have none for long; reported once
}

// New returns the Machine of a peer whose policy has turned on.
func New(local, remote noise.PublicKey) *Machine {
	m := &Machine{}
	m.policy.Store(uint32(config.PostQuantumOff))
	m.exchange.SetIdentity(local, remote)
	return m
}

// Policy returns the policy in effect: auto, off or required. It needs no lock.
func (m *Machine) Policy() config.PostQuantum {
	if m == nil {
		return config.PostQuantumOff
	}
	return config.PostQuantum(m.policy.Load())
}

// SetPolicy changes the policy in effect. Off erases all keys. A session that began with off cannot have
// one, and is no downgrade.
func (m *Machine) SetPolicy(policy config.PostQuantum) {
	if m.Policy() == config.PostQuantumOff {
		m.baseSince = 0
	}
	m.policy.Store(uint32(policy))
	if policy == config.PostQuantumOff {
		m.exchange.Erase()
	}
}

// SetIdentity sets the static public keys, and erases everything that was made with others.
func (m *Machine) SetIdentity(local, remote noise.PublicKey) {
	if m != nil {
		m.exchange.SetIdentity(local, remote)
	}
}

// Erase erases all keys, and ends the exchange.
func (m *Machine) Erase() {
	if m != nil {
		m.exchange.Erase()
	}
}

// SetOffers records the statement of the peer's last hello.
func (m *Machine) SetOffers(o postquantum.Offers) {
	if m != nil {
		m.exchange.SetOffers(o)
	}
}

// act adds the state after an event to the actions of the exchange.
func (m *Machine) act(a postquantum.Actions, now int64) Actions {
	if a.Upgrade {
		m.upgradeAt, m.upgrading = max(now, m.initiatedAt+upgradePause), true
	}
	return Actions{Actions: a, Message: m.exchange.Message(), LeaveTurn: !m.holdsTurn()}
}

// Receive takes a part that has arrived in a session.
func (m *Machine) Receive(in *postquantum.Session, p *Part, now int64) Actions {
	return m.act(m.exchange.Receive(in, &p.part, now), now)
}

// holdsTurn reports whether the exchange, or the handshake with its key, takes resources.
func (m *Machine) holdsTurn() bool { return m.exchange.HoldsTurn() || m.upgrading }

// Wanted reports whether Offer would begin an exchange, or request a turn for it.
func (m *Machine) Wanted() bool { return m.Policy() != config.PostQuantumOff && m.exchange.WantsTurn() }

// Offer begins an exchange if one is due. enter reports whether this peer has its turn among all, and
// requests it. Peers whose sessions carry no data without a key need none. The error is rand's.
func (m *Machine) Offer(rand io.Reader, enter func() bool, now int64) (Actions, error) {
	switch policy := m.Policy(); {
	case policy == config.PostQuantumOff:
		return Actions{}, nil
	case !m.exchange.WantsTurn():
		return Actions{LeaveTurn: !m.holdsTurn()}, nil
	case policy == config.PostQuantumRequired:
	case !enter():
		return Actions{}, nil
	}
	a, err := m.exchange.Offer(rand, now)
	return m.act(a, now), err
}

// Upgrade asks for the handshake with a new key when it is due, unless the session has a key or the
// exchange has changed since.
func (m *Machine) Upgrade(current Session, now int64) (a Actions) {
	if m == nil || m.upgradeAt == 0 || now < m.upgradeAt {
		return a
	}
	m.upgradeAt = 0
	m.upgrading = current.Exchange != nil && !current.hasKey() && m.exchange.State() == postquantum.Done
	a.Upgrade, a.LeaveTurn = m.upgrading, !m.holdsTurn()
	return a
}

// Fire does what is due, except Upgrade.
func (m *Machine) Fire(current Session, now int64) (a Actions) {
	if m == nil {
		return a
	}
	if at := m.exchange.Next(); at != 0 && now >= at {
		a = m.act(m.exchange.Fire(now), now)
	}
	if m.expireAt != 0 && now >= m.expireAt {
		m.expireAt = 0
		if current.Restricted(now) {
			a.Expire = true
			m.expireAt = now + peer.RekeyAttemptTime
		}
	}
	if !m.warned && m.downgraded(current, now) {
		m.warned, a.Downgrade = true, true
	}
	return a
}

// Next returns when Fire or Upgrade is due, 0 for never.
func (m *Machine) Next(current Session, now int64) (next int64) {
	if m == nil {
		return 0
	}
	warnAt := int64(0)
	if !m.warned {
		warnAt = m.downgradeAt(current, now)
	}
	for _, at := range [...]int64{m.exchange.Next(), m.upgradeAt, m.expireAt, warnAt} {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// Begin is called after current has become the current session. wall is the time of day.
func (m *Machine) Begin(current Session, now int64, wall time.Time) Actions {
	if m == nil {
		return Actions{}
	}
	_, held := m.exchange.Ring.Signal()
	m.lost = !current.hasKey() && (m.lost || held && !m.had.IsZero())
	m.exchange.Begin(current.Exchange, now)
	m.upgradeAt, m.upgrading = 0, false
	if m.since == 0 {
		m.since = now
	}
	switch {
	case !current.Keys.Restricted():
		m.expireAt = 0
	case m.expireAt == 0: // else packets have waited since an earlier one
		m.expireAt = now + peer.RekeyAttemptTime
	}
	switch {
	case current.hasKey():
		m.had, m.baseSince, m.warned = wall, 0, false
	case m.baseSince == 0:
		m.baseSince = now
	}
	return Actions{LeaveTurn: !m.holdsTurn() && !m.exchange.WantsTurn()}
}

// End is called after all sessions were erased.
func (m *Machine) End() {
	if m == nil {
		return
	}
	m.exchange.Ring.EraseUsed()
	m.exchange.End()
	m.upgradeAt, m.upgrading, m.expireAt = 0, false, 0
	m.baseSince, m.warned, m.since = 0, false, 0
}

// downgradeAt returns since when the session in use is a downgrade, or when it will be one.
// Sessions with the peer had keys of exchanges, and have none for some time. 0 is for never:
// without a session, and if data needs no key or is blocked without.
func (m *Machine) downgradeAt(current Session, now int64) int64 {
	if m.Policy() != config.PostQuantumAuto || m.had.IsZero() || m.baseSince == 0 || !current.usable(now) {
		return 0
	}
	return m.baseSince + baseGrace
}

func (m *Machine) downgraded(current Session, now int64) bool {
	at := m.downgradeAt(current, now)
	return at != 0 && now >= at
}

// Had returns when a session with a key was last confirmed; zero for never, or if that was forgotten.
func (m *Machine) Had() time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.had
}

// Recall tells the Machine when sessions with the peer had keys in a process before this one.
func (m *Machine) Recall(had time.Time) {
	if m != nil && m.had.Before(had) {
		m.had = had
	}
}

// Forget makes sessions without keys no downgrade any more.
func (m *Machine) Forget() {
	if m != nil {
		m.had, m.warned, m.lost = time.Time{}, false, false
	}
}

// Report describes the session in use. configured is the policy without regard of spread. unknown
// is why there is no hello of the peer, nil if that is not the reason.
func (m *Machine) Report(configured config.PostQuantum, current Session, unknown error, now int64) config.PeerPostQuantum {
	r := config.PeerPostQuantum{Policy: configured}
	usable := current.usable(now)
	if usable && current.hasKey() {
		at := current.Exchange.Key().At
		r.Active, r.Age, r.Suite = true, time.Duration(now-at).Truncate(time.Second).Seconds(), config.PostQuantumSuite
		if m != nil {
			at = max(at, m.since)
		}
		r.Stale = now-at >= staleKey
		return r
	}
	r.Downgraded = m.downgraded(current, now)
	r.Blocked = current.Restricted(now) && now-current.Keys.Created() >= blockedAfter
	r.Reason = m.why(configured, usable, unknown)
	return r
}

// why says why the session in use has no key.
func (m *Machine) why(configured config.PostQuantum, usable bool, unknown error) string {
	switch {
	case configured == config.PostQuantumOff:
		return ""
	case m.Policy() == config.PostQuantumOff:
		return "inactive: spread is off"
	case !usable:
		return "there is no session yet"
	case m.exchange.Offers() == postquantum.OffersNone:
		return "the peer does not offer post-quantum keys"
	case m.exchange.Offers() == postquantum.OffersUnknown && unknown != nil:
		return unknown.Error()
	}
	if m.lost && m.exchange.State() != postquantum.Failed {
		return "lost by the peer, renewing"
	}
	return [...]string{
		postquantum.Idle:     "waiting for the peer to begin the exchange",
		postquantum.Waiting:  "waiting for a turn",
		postquantum.Offered:  "exchanging keys",
		postquantum.Answered: "exchanging keys",
		postquantum.Done:     "starting a session with the new key",
		postquantum.Failed:   "the exchange failed, trying again with the next session",
	}[m.exchange.State()]
}
