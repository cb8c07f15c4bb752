// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/session"
)

// keyBinding is a receiver index of ours, and the key pair it stands for once the handshake is complete.
type keyBinding struct {
	index   uint32
	session *engine.Session
	keys    *session.Keypair
	signed  bool // by the peer, which initiated
}

// keypairs are a peer's key pairs (WireGuard paper §6.3): one to send with, those before it, whose messages may still
// be under way, and, at a responder, one that the initiator has not used yet.
//
// The paper keeps one previous key pair. Two are kept here: when both sides initiate at once, either may be the one
// that the peer sends with, until it has heard from us. A third stays until a worker unbinds it: lanes promote,
// and unbinding may take long.
type keypairs struct {
	current, next *keyBinding
	previous      [3]*keyBinding // newest first
	confirmed     *keyBinding    // one of these: promoted, of which the timers have yet to hear
}

// all returns all key pairs; those that there are not are nil.
func (s *keypairs) all() []*keyBinding {
	return append([]*keyBinding{s.current, s.next}, s.previous[:]...)
}

// reserveIndex reserves a receiver index that leads to p.
func (p *Peer) reserveIndex() (*keyBinding, error) {
	s := &engine.Session{Peer: p.engine}
	index, err := p.dev.engine.Sessions.Add(s)
	if err != nil {
		return nil, fmt.Errorf("reserving a receiver index: %w", err)
	}
	p.dev.admitIndex(index)
	return &keyBinding{index: index, session: s}, nil
}

// releaseIndex gives the index up and wipes the keys. b may be nil.
func (p *Peer) releaseIndex(b *keyBinding) {
	if b == nil {
		return
	}
	p.dev.refuseIndex(b.index) // before somebody else may draw it
	p.dev.engine.Sessions.Remove(b.index)
	b.session.Keys.Store(nil)
	if b.keys != nil {
		b.keys.Wipe()
	}
}

// establish makes b, with its keys complete, part of the sessions: an initiator sends with it at once, a responder
// only after the initiator has. Staged packets leave before lanes may use the keys. The caller holds mu.
func (p *Peer) establish(b *keyBinding, initiator bool) {
	defer p.discard()
	s := &p.sessions
	b.session.Keys.Store(b.keys)
	if !initiator {
		old := s.next
		s.next = b
		p.engine.Unconfirmed.Store(b.keys)
		p.releaseIndex(old)
		return
	}
	crossed := s.next
	s.next = nil
	p.engine.Unconfirmed.Store(nil)
	p.promote(b)
	if crossed != nil {
		p.retire(crossed)
	}
}

// promote makes b the key pair to send with. What it replaces may still be received with, and is wiped only after
// lanes have turned to b.
func (p *Peer) promote(b *keyBinding) {
	old := p.sessions.current
	p.sessions.current = b
	p.publish()
	if old != nil {
		p.retire(old)
	}
}

// retire keeps b for what is still under way. Of those before it one more than is wanted may be left for discard.
func (p *Peer) retire(b *keyBinding) {
	p.discard()
	s := &p.sessions
	s.previous[0], s.previous[1], s.previous[2] = b, s.previous[0], s.previous[1]
}

// discard unbinds the key pair that is too old. Lanes find none: whoever establishes what they promote has called it.
func (p *Peer) discard() {
	p.releaseIndex(p.sessions.previous[2])
	p.sessions.previous[2] = nil
}

// promoteNext makes the responder's new key pair, which the initiator has used, the one to send with. Lanes call it while nothing is
// staged: what else there is to do may take long, and is left to confirm. The caller holds mu.
func (p *Peer) promoteNext() {
	s := &p.sessions
	if s.next == nil || s.next.keys != p.confirmedKeys.Load() {
		return
	}
	b := s.next
	s.next = nil
	p.engine.Unconfirmed.Store(nil)
	p.dev.handshakeCounts.confirmed.Add(1)
	p.promote(b)
	s.confirmed = b
}

// confirm does what follows from the initiator's having used the key pair. The caller holds mu.
func (p *Peer) confirm(now int64) {
	p.promoteNext()
	p.discard()
	b := p.sessions.confirmed
	if b == nil {
		return
	}
	p.sessions.confirmed = nil
	p.handshakeComplete(now)
	if b.signed {
		p.confirmed(now)
	}
}

// publish sends what was staged and then lets lanes send with the current key pair. The caller holds mu, so no lane
// can stage anything in between.
func (p *Peer) publish() {
	keys := p.sessions.current.keys
	for len(p.staged.trains) > 0 {
		p.dev.engine.Transmit(p.engine, keys, p.unstage().bytes)
	}
	p.engine.Current.Store(keys)
}

// forgetSessions erases all key pairs. The caller holds mu.
func (p *Peer) forgetSessions() {
	s := &p.sessions
	p.engine.Current.Store(nil)
	p.engine.Unconfirmed.Store(nil)
	for _, b := range s.all() {
		p.releaseIndex(b)
	}
	*s = keypairs{}
	p.forgetHello(errNoSession)
}
