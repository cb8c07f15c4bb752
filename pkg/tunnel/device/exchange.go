// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// maxExchanges is the number of exchanges that a device offers at a time. Peers whose sessions carry no data without need no turn.
	maxExchanges = 256
	// exchangeRetry is the time, in ns, after which an exchange may begin that has waited while handshakes were under load.
	exchangeRetry = int64(time.Second)
	// upgradePause is the minimum time, in ns, between an initiation and the next one that a new key causes: peers drop initiations that follow
	// within 20 ms (peer.HandshakeInitiationRate).
	upgradePause = int64(25 * time.Millisecond)
	// maxParts is the number of parts from a peer that wait for a worker, and that are accepted in a second.
	maxParts = 16
	// baseGrace is the time, in ns, for which a peer that had post-quantum sessions may have others before that is a downgrade. Each restart of
	// the peer makes one.
	baseGrace = int64(30 * time.Second)
	// minUnfit is the number of initiations of one attempt whose responses fit no key, so that the ring is erased: two different keys of the two
	// ends share an id. Neither silence nor some forged responses may have this effect.
	minUnfit = 9
)

// postQuantum is the part of a peer in post-quantum exchanges. Peer.mu guards all but policy and parts.
type postQuantum struct {
	policy   atomic.Uint32 // the config.PostQuantum in effect: auto, off or required. Lanes read it
	parts    partQueue
	exchange postquantum.Exchange
	turn     turn // guarded by Device.exchanges

	own         config.PostQuantum // the peer's policy
	named       postquantum.Key    // in the handshake in flight
	unfit       int                // initiations since the last session whose responses fit no key
	answered    *keyBinding        // the handshake in flight has counted in unfit
	initiatedAt int64              // when the last initiation was sent
	upgradeAt   int64              // when a handshake with a new key is due, 0 for never
	retryAt     int64              // when an exchange that waits for the end of the load may begin, 0 for never
	expireAt    int64              // when packets that wait for a post-quantum session are dropped, 0 for never
	had         time.Time          // when a session with a key was last confirmed; zero for never, or if that was forgotten
	baseSince   int64              // since when sessions have no key, 0 for not
	warned      bool               // of it
	since       int64              // when the first session after eraseSessions began, 0 without one
}

// partQueue takes parts of exchanges from lanes, in order.
type partQueue struct {
	rate rate
	mu   sync.Mutex
	list []pendingPart
}

// pendingPart is a part on its way from a lane to a worker.
type pendingPart struct {
	keys *session.Keypair // under which it has arrived
	part wire.KEMPart     // with data of its own
}

// put appends a part, unless the queue is full.
func (q *partQueue) put(m pendingPart) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) >= maxParts {
		return false
	}
	q.list = append(q.list, m)
	return true
}

// take empties the queue.
func (q *partQueue) take() []pendingPart {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	q.list = nil
	return list
}

// quantumCounters count for all present and removed peers of a device.
type quantumCounters struct {
	results    [postquantum.Results]atomic.Uint64
	fallbacks  atomic.Uint64 // handshakes of ours in which the peer did not have the key that was named
	downgrades atomic.Uint64
}

func (p *Peer) policy() config.PostQuantum { return config.PostQuantum(p.quantum.policy.Load()) }

// bindingOf returns the session of a key pair, nil if it has ended. The caller holds mu.
func (p *Peer) bindingOf(keys *session.Keypair) *keyBinding {
	for _, b := range p.sessions.all() {
		if b != nil && b.keys == keys {
			return b
		}
	}
	return nil
}

// actExchange does what an exchange asks for. The caller holds mu.
func (p *Peer) actExchange(a postquantum.Actions, now int64) {
	if a.Result != 0 {
		p.dev.quantumCounts.results[a.Result].Add(1)
		p.log().Debug("post-quantum exchange", "peer", p.key, "result", a.Result.String())
	}
	if a.Send != 0 {
		p.sendParts(a, now)
	}
	if a.Upgrade {
		p.quantum.upgradeAt = max(now, p.quantum.initiatedAt+upgradePause)
	}
	if !p.quantum.exchange.HoldsTurn() {
		p.dev.exchanges.leave(p)
	}
}

// sendParts sends a message under the key pair of its session. The caller holds mu.
func (p *Peer) sendParts(a postquantum.Actions, now int64) {
	for _, b := range p.sessions.all() {
		if b == nil || &b.exchange != a.Session || !b.keys.Usable(now) {
			continue
		}
		var messages [wire.KEMParts]engine.ControlMessage
		for i := range messages {
			messages[i].Plain = wire.AppendKEMPart(nil, a.Send, p.quantum.exchange.Message(), i)
		}
		p.dev.engine.SendControl(p.engine, b.keys, messages[:]...)
	}
}

// offerExchange begins an exchange if one is due, and there are resources for it. The caller holds mu.
func (p *Peer) offerExchange(now int64) {
	q := &p.quantum
	switch x := &q.exchange; {
	case !x.WantsTurn():
		if !x.HoldsTurn() && p.policy() != config.PostQuantumOff {
			p.dev.exchanges.leave(p)
		}
		return
	case p.policy() == config.PostQuantumRequired:
	case p.dev.handshakes.underLoad(now):
		q.retryAt = now + exchangeRetry
		return
	case !p.dev.exchanges.enter(p):
		return
	}
	a, err := q.exchange.Offer(p.dev.cfg.Rand, now)
	if err != nil {
		p.log().Error("beginning a post-quantum exchange failed, trying again with the next session", "peer", p.key, "error", err)
	}
	p.actExchange(a, now)
}

// nextExchange returns when runExchangeTimers is due, 0 for never. The caller holds mu.
func (p *Peer) nextExchange(now int64) (next int64) {
	q := &p.quantum
	warnAt := int64(0)
	if !q.warned {
		warnAt = p.downgradeAt(now)
	}
	for _, at := range []int64{q.exchange.Next(), q.upgradeAt, q.retryAt, q.expireAt, warnAt} {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// isRestricted reports whether there is a session that carries no data. The caller holds mu.
func (p *Peer) isRestricted(now int64) bool {
	b := p.sessions.current
	return b != nil && b.keys.Restricted() && b.keys.Usable(now)
}

// beginExchange follows that b is the current session. The caller holds mu.
func (p *Peer) beginExchange(b *keyBinding) {
	q, now := &p.quantum, p.dev.clock()
	q.exchange.Begin(&b.exchange, now)
	if !q.exchange.HoldsTurn() && !q.exchange.WantsTurn() && p.policy() != config.PostQuantumOff {
		p.dev.exchanges.leave(p)
	}
	q.upgradeAt = 0
	if q.since == 0 {
		q.since = now
	}
	switch {
	case !b.keys.Restricted():
		q.expireAt = 0
	case q.expireAt == 0: // else packets have waited since an earlier one
		q.expireAt = now + peer.RekeyAttemptTime
	}
	switch {
	case b.exchange.Key().Named:
		q.had, q.baseSince, q.warned = p.dev.cfg.Wall(), 0, false
	case q.baseSince == 0:
		q.baseSince = now
	}
}

// downgradeAt returns since when the session in use is a downgrade, or when it will be one: sessions with the peer had keys of exchanges, and have none
// for some time. 0 is for never: without a session, and if data needs no key or is blocked without. The caller holds mu.
func (p *Peer) downgradeAt(now int64) int64 {
	q := &p.quantum
	if p.policy() != config.PostQuantumAuto || q.had.IsZero() || q.baseSince == 0 || !p.controlKeys().Usable(now) {
		return 0
	}
	return q.baseSince + baseGrace
}

// isDowngraded reports whether the session in use is a downgrade. The caller holds mu.
func (p *Peer) isDowngraded(now int64) bool {
	at := p.downgradeAt(now)
	return at != 0 && now >= at
}

// announces reports whether this side tells the peer that it is a ropewalk, and takes its hellos.
func (p *Peer) announces() bool {
	return p.dev.spreading.Load().mode != config.SpreadOff || p.policy() == config.PostQuantumRequired
}

// signal marks the timestamp of an initiation, and notes the key that it names. The caller holds mu.
func (p *Peer) signal(t noise.Timestamp) noise.Timestamp {
	p.quantum.named = postquantum.Key{}
	if !p.announces() {
		return t
	}
	if id, ok := p.quantum.exchange.Ring.Signal(); ok {
		p.quantum.named = postquantum.Key{ID: id, Named: true}
		return t.Naming(id)
	}
	return t.Signed()
}

// presharedKey returns the preshared key of a handshake that names a key, and what of that this side has. The caller wipes it, and holds mu.
func (p *Peer) presharedKey(named postquantum.Key) (noise.PresharedKey, postquantum.Key) {
	if named.Named {
		if mixed, ok := p.quantum.exchange.Ring.Effective(named.ID, &p.handshake.psk); ok {
			defer clear(mixed[:])
			return mixed, named
		}
	}
	return p.handshake.psk, postquantum.Key{}
}

// namedBy returns the key that the timestamp of an initiation names, if this side has it, and whether the timestamp is a ropewalk's. An unrounded
// clock names a key by chance, so one that is not held proves nothing of a stranger. The caller holds mu.
func (p *Peer) namedBy(t noise.Timestamp) (key postquantum.Key, ropewalk bool) {
	id, named := t.Named()
	if !named {
		return key, t.IsSigned()
	}
	mixed, key := p.presharedKey(postquantum.Key{ID: id, Named: true})
	clear(mixed[:])
	return key, key.Named || p.hello.ropewalk || !p.quantum.had.IsZero()
}

// consumeResponse derives the keys with the preshared key that the peer has used: of the key that was named, or of none. The caller holds mu.
func (p *Peer) consumeResponse(msg []byte) (keys noise.Keys, key postquantum.Key, reason drop.Reason) {
	q := &p.quantum
	mixed, held := p.presharedKey(q.named)
	defer clear(mixed[:])
	keys, reason = p.handshake.initiator.ConsumeResponse(msg, &mixed, &p.handshake.psk)
	switch {
	case reason != drop.None:
		if held.Named && q.answered != p.handshake.attempt {
			q.answered = p.handshake.attempt
			q.unfit++
		}
		return keys, postquantum.Key{}, reason
	case keys.Preshared == 0:
		return keys, held, reason
	}
	return keys, postquantum.Key{}, reason
}

// bindExchange gives b what its exchange needs. The caller holds mu.
func (p *Peer) bindExchange(b *keyBinding, keys *noise.Keys, key postquantum.Key) {
	if key.Named {
		key.At = p.quantum.exchange.Ring.Use(key.ID)
	}
	b.exchange = postquantum.NewSession(keys, key)
	switch p.policy() {
	case config.PostQuantumOff:
		b.exchange.Wipe()
	case config.PostQuantumRequired:
		if !key.Named {
			b.keys.Restrict()
		}
	}
}

// configuredPolicy returns the policy without regard of spread: auto, off or required. The caller holds mu.
func (p *Peer) configuredPolicy() config.PostQuantum {
	return p.quantum.own.Or(config.PostQuantum(p.dev.postQuantum.Load())).Or(config.DefaultPostQuantum)
}

// reportPostQuantum describes the session in use. The caller holds mu.
func (p *Peer) reportPostQuantum(now int64) config.PeerPostQuantum {
	r := config.PeerPostQuantum{Policy: p.configuredPolicy(), Own: p.quantum.own != config.PostQuantumDefault}
	b := p.sessions.current
	usable := b != nil && b.keys.Usable(now)
	if usable && b.exchange.Key().Named {
		at := b.exchange.Key().At
		r.Active, r.Age = true, time.Duration(now-at).Truncate(time.Second).Seconds()
		r.Suite, r.Stale = config.PostQuantumSuite, now-max(at, p.quantum.since) >= staleKey
		return r
	}
	r.Downgraded = p.isDowngraded(now)
	r.Blocked = usable && b.keys.Restricted() && now-b.keys.Created() >= blockedAfter
	r.Reason = p.whyNotPostQuantum(r.Policy, usable)
	return r
}

// staleKey is the time, in ns, of sessions without a new key, from which that is reported. Sessions are renewed each two minutes while there is traffic.
const staleKey = int64(10 * time.Minute)

// blockedAfter is the time, in ns, for which a session that is required to be post-quantum may be without a key before that is reported.
const blockedAfter = int64(5 * time.Second)

// whyNotPostQuantum says why the session in use has no key. The caller holds mu.
func (p *Peer) whyNotPostQuantum(configured config.PostQuantum, usable bool) string {
	x := &p.quantum.exchange
	switch {
	case configured == config.PostQuantumOff:
		return ""
	case p.policy() == config.PostQuantumOff:
		return "inactive: spread is off"
	case !usable:
		return "there is no session yet"
	case x.Offers() == postquantum.OffersNone:
		return "the peer does not offer post-quantum keys"
	case x.Offers() == postquantum.OffersUnknown && p.hello.unknown != nil:
		return p.hello.unknown.Error()
	}
	return [...]string{
		postquantum.Idle:     "waiting for the peer to begin the exchange",
		postquantum.Waiting:  "waiting for a turn",
		postquantum.Offered:  "exchanging keys",
		postquantum.Answered: "exchanging keys",
		postquantum.Done:     "starting a session with the new key",
		postquantum.Failed:   "the exchange failed, trying again with the next session",
	}[x.State()]
}

// controlKeys returns the key pair to send control messages and keepalives with, nil for none: that of the lanes, or a restricted one. The caller
// holds mu.
func (p *Peer) controlKeys() *session.Keypair {
	if keys := p.engine.Current.Load(); keys != nil {
		return keys
	}
	if b := p.sessions.current; b != nil {
		return b.keys
	}
	return nil
}

// noteOffers tells the exchange what the peer's last hello says. The caller holds mu.
func (p *Peer) noteOffers() {
	offers := postquantum.OffersNone
	if p.hello.remote.PostQuantum {
		offers = postquantum.OffersExchange
	}
	p.quantum.exchange.SetOffers(offers)
}
