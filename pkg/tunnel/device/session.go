// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pqexchange"
)

// keyBinding is a local receiver index, and its key pair once the handshake is complete.
type keyBinding struct {
	index   uint32
	guard   *guardRef // that knows index; nil for none
	session *engine.Session
	keys    *session.Keypair
	sentTo  netip.Addr // where our handshake message went: a peer with the keys receives at this address
	signed  bool       // the peer initiated, and marked its initiation as a ropewalk's

	exchange postquantum.Session // once the handshake is complete
}

// keypairs are a peer's key pairs (WireGuard paper §6.3): the current one to send with, previous ones whose messages may
// still be in flight, and, at a responder, the next one, which the initiator has not used yet.
//
// The paper keeps one previous key pair. Two are kept here: when both sides initiate at once, the peer may send with either
// until it has heard from us. A third stays until a worker releases it: lanes promote key pairs, and releasing may take long.
type keypairs struct {
	current, next *keyBinding
	previous      [3]*keyBinding // newest first
	confirmed     *keyBinding    // promoted by a lane, and not yet handled by confirmSession; one of the others
}

// all returns all key pairs, with nil for missing ones.
func (s *keypairs) all() []*keyBinding {
	return append([]*keyBinding{s.current, s.next}, s.previous[:]...)
}

// of returns the session of a key pair, nil if it has ended.
func (s *keypairs) of(keys *session.Keypair) *keyBinding {
	for _, b := range s.all() {
		if b != nil && b.keys == keys {
			return b
		}
	}
	return nil
}

// inUse returns the current session for exchanges.
func (s *keypairs) inUse() pqexchange.Session {
	if s.current == nil {
		return pqexchange.Session{}
	}
	return pqexchange.Session{Exchange: &s.current.exchange, Keys: s.current.keys}
}

// controlKeys returns the key pair to send control messages and keepalives with, nil for none: that of the lanes, or a restricted one. The caller
// holds mu.
func (p *Peer) controlKeys() *session.Keypair {
	if keys := p.engine.Current.Load(); keys != nil {
		return keys
	}
	return p.sessions.inUse().Keys
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

// hasSession reports whether p has a key pair to send or receive with. The caller holds mu.
func (p *Peer) hasSession() bool { return p.controlKeys() != nil || p.sessions.next != nil }

// establish adds b, whose keys are complete. An initiator sends with it at once, a responder only after the initiator has
// used it. Staged packets leave before lanes may use the keys. The caller holds mu.
func (p *Peer) establish(b *keyBinding, initiator bool) {
	defer p.releaseExcess()
	s := &p.sessions
	b.session.Keys.Store(b.keys)
	if !initiator {
		p.setUnconfirmed(b.keys)
		p.promoteNext() // if a lane has published it
		old := s.next
		s.next = b
		p.releaseIndex(old)
		return
	}
	p.setUnconfirmed(nil)
	p.promoteNext()
	crossed := s.next
	s.next = nil
	p.promote(b)
	if crossed != nil {
		p.retire(crossed)
	}
}

// promoteNext promotes the responder's new key pair if the initiator has used it. A lane may have published it already. The caller holds mu.
func (p *Peer) promoteNext() {
	s := &p.sessions
	if s.next == nil || s.next.keys != p.requests.confirmedKeys.Load() {
		return
	}
	b := s.next
	s.next = nil
	if p.engine.Unconfirmed.Load() == b.keys {
		p.setUnconfirmed(nil)
	}
	p.dev.handshakeCounts.confirmed.Add(1)
	p.promote(b)
	s.confirmed = b
}

// promote makes b the current key pair, with which lanes send unless it is restricted. The old one still receives, and is wiped only after lanes have switched to b.
func (p *Peer) promote(b *keyBinding) {
	old := p.sessions.current
	p.sessions.current = b
	if b.keys.Restricted() {
		p.clearCurrent()
	} else {
		p.publish(b.keys)
	}
	if old != nil {
		p.retire(old)
	}
	p.quantum.begin()
}

// retire keeps b for messages in flight. It may keep one key pair too many, which releaseExcess releases.
func (p *Peer) retire(b *keyBinding) {
	p.releaseExcess()
	s := &p.sessions
	s.previous[0], s.previous[1], s.previous[2] = b, s.previous[0], s.previous[1]
}

// releaseExcess releases the oldest key pair.
func (p *Peer) releaseExcess() {
	p.releaseIndex(p.sessions.previous[2])
	p.sessions.previous[2] = nil
}

// eraseSessions erases all key pairs and the result of the hello exchange. The caller holds mu.
func (p *Peer) eraseSessions() {
	s := &p.sessions
	p.clearKeys()
	for _, b := range s.all() {
		p.releaseIndex(b)
	}
	*s = keypairs{}
	p.quantum.end()
	p.requests.hellos.discard()
	p.resetHello(errNoSession)
	p.noteChange()
}

// reserveIndex reserves a receiver index that leads to p.
func (p *Peer) reserveIndex() (*keyBinding, error) {
	s := &engine.Session{Peer: p.engine}
	index, err := p.dev.engine.Sessions.Add(s)
	if err != nil {
		return nil, fmt.Errorf("reserving a receiver index: %w", err)
	}
	b := &keyBinding{index: index, session: s}
	p.dev.admitIndex(b)
	p.noteChange()
	return b, nil
}

// releaseIndex releases the index and wipes the keys. b may be nil.
func (p *Peer) releaseIndex(b *keyBinding) {
	if b == nil {
		return
	}
	p.dev.refuseIndex(b) // before the index can be reserved again
	p.dev.engine.Sessions.Remove(b.index)
	b.session.Keys.Store(nil)
	b.exchange.Wipe()
	if b.keys != nil {
		b.keys.Wipe()
	}
}
