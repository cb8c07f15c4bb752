// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// ExchangePart implements engine.SlowPath: it copies the part.
func (p *Peer) ExchangePart(plain []byte, keys *session.Keypair) drop.Reason {
	q := &p.quantum.parts
	if p.policy() == config.PostQuantumOff || !q.rate.allowUpTo(maxParts, p.dev.clock(), time.Second) {
		return drop.ExchangeUnwanted
	}
	m := pendingPart{keys: keys}
	switch err := wire.ParseKEMPart(plain, &m.part); {
	case errors.Is(err, wire.ErrKEMVersion):
		return drop.ExchangeVersion
	case err != nil:
		return drop.ExchangeInvalid
	}
	m.part.Data = append([]byte(nil), m.part.Data...)
	if !q.put(m) {
		return drop.ExchangeUnwanted
	}
	p.post(taskExchange)
	return drop.None
}

// takeParts returns the parts that have arrived. Those of the unconfirmed session confirm it, as any message does: the lane may not have come to that
// yet, and a part counts for a confirmed session only. The caller holds mu, and calls confirmSession.
func (p *Peer) takeParts() []pendingPart {
	list := p.quantum.parts.take()
	for _, m := range list {
		if b := p.sessions.next; b != nil && b.keys == m.keys {
			p.confirm(m.keys)
		}
	}
	return list
}

// runExchangeTasks handles parts, and begins an exchange whose turn has come. The caller holds mu.
func (p *Peer) runExchangeTasks(parts []pendingPart, now int64) {
	for i := range parts {
		if b := p.bindingOf(parts[i].keys); b != nil {
			p.actExchange(p.quantum.exchange.Receive(&b.exchange, &parts[i].part, now), now)
		}
	}
	p.upgrade(now)
	p.offerExchange(now)
}

// upgrade starts the handshake with a new key, if it is due and the session still has none. The caller holds mu.
func (p *Peer) upgrade(now int64) {
	q := &p.quantum
	if q.upgradeAt == 0 || now < q.upgradeAt {
		return
	}
	q.upgradeAt = 0
	if b := p.sessions.current; b != nil && !b.exchange.Key().Named && q.exchange.State() == postquantum.Done {
		p.startRenewal(now)
	}
}

// runExchangeTimers does what is due. The caller holds mu.
func (p *Peer) runExchangeTimers(now int64) {
	q := &p.quantum
	if at := q.exchange.Next(); at != 0 && now >= at {
		p.actExchange(q.exchange.Fire(now), now)
	}
	p.upgrade(now)
	if q.retryAt != 0 && now >= q.retryAt {
		q.retryAt = 0
		p.offerExchange(now)
	}
	if q.expireAt != 0 && now >= q.expireAt {
		q.expireAt = 0
		if p.isRestricted(now) {
			p.dropStaged()
			q.expireAt = now + peer.RekeyAttemptTime
		}
	}
	p.warnDowngraded(now)
}

// warnDowngraded warns once of a peer that had post-quantum sessions, and has others for long. The caller holds mu.
func (p *Peer) warnDowngraded(now int64) {
	q := &p.quantum
	if q.warned || !p.isDowngraded(now) {
		return
	}
	q.warned = true
	p.dev.quantumCounts.downgrades.Add(1)
	level := slog.LevelWarn
	if !p.dev.failuresLog.allow(now, time.Minute) {
		level = slog.LevelDebug
	}
	p.log().Log(context.Background(), level, "sessions with the peer are not post-quantum any more, sending data all the same (PostQuantum = required forbids it)",
		"peer", p.key, "reason", p.reportPostQuantum(now).Reason, "last_post_quantum", q.had)
}

// forgetUnfit erases all keys if the responses of an attempt fit none of them. The caller holds mu.
func (p *Peer) forgetUnfit() {
	if p.quantum.unfit >= minUnfit {
		p.log().Warn("the peer answers with another post-quantum key than was named, erasing all of them: the next session has none", "peer", p.key)
		p.quantum.exchange.Ring.Erase()
	}
	p.quantum.unfit = 0
}

// configurePostQuantum sets the policy of the device; nil leaves it unchanged. spread is the mode before the present one, on which policies depend.
// The caller holds mu.
func (d *Device) configurePostQuantum(policy *config.PostQuantum, spread config.SpreadMode) {
	old := d.postQuantum.Load()
	if policy != nil {
		d.postQuantum.Store(uint32(*policy))
	}
	if d.postQuantum.Load() == old && d.spreading.Load().mode == spread {
		return
	}
	for _, p := range d.peers {
		p.mu.Lock()
		p.updatePolicy()
		p.mu.Unlock()
	}
}

// updatePolicy follows a change of the policy, or of the mode of spread: while spread is off, there are no hellos to agree on an exchange, unless it is
// required. The caller holds Device.mu and mu.
func (p *Peer) updatePolicy() {
	q := &p.quantum
	next := p.configuredPolicy()
	if next == config.PostQuantumOff {
		q.had, q.baseSince = time.Time{}, 0
	}
	if next == config.PostQuantumAuto && p.dev.spreading.Load().mode == config.SpreadOff {
		next = config.PostQuantumOff
	}
	old := config.PostQuantum(q.policy.Swap(uint32(next)))
	if next == old {
		return
	}
	now := p.dev.clock()
	p.noteChange()
	if next == config.PostQuantumOff {
		q.exchange.Erase()
		p.dev.exchanges.leave(p)
		for _, b := range p.sessions.all() {
			if b != nil {
				b.exchange.Wipe()
			}
		}
	}
	if !p.running {
		return
	}
	if next == config.PostQuantumRequired || old == config.PostQuantumRequired {
		p.endBaseSessions(now)
	}
	p.handleHello(nil, now)
	p.armTimer(now)
}

// endBaseSessions ends the sessions that have no key: the policy says otherwise than before whether they may carry data. If the peer may send with one
// from now on, all sessions end, and a handshake starts. The caller holds mu.
func (p *Peer) endBaseSessions(now int64) {
	s := &p.sessions
	isBase := func(b *keyBinding) bool { return b != nil && !b.exchange.Key().Named }
	if !isBase(s.current) && !isBase(s.next) {
		for i, b := range s.previous {
			if !isBase(b) {
				continue
			}
			if s.confirmed == b {
				s.confirmed = nil
			}
			p.releaseIndex(b)
			s.previous[i] = nil
		}
		return
	}
	live := p.isLive(now)
	p.eraseSessions()
	p.endAttempt()
	if live {
		p.renew(now)
	}
}
