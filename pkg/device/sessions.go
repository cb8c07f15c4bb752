// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/session"
)

// binding is a receiver index of ours, and the key pair it stands for once the handshake is complete.
type binding struct {
	index   uint32
	session *engine.Session
	keys    *session.Keypair
	signed  bool // by the peer, which initiated
}

// sessions are a peer's key pairs (WireGuard paper §6.3): one to send with, those before it, whose messages may still
// be under way, and, at a responder, one that the initiator has not used yet.
//
// The paper keeps one previous key pair. Two are kept here: when both sides initiate at once, either may be the one
// that the peer sends with, until it has heard from us. A third stays until a worker unbinds it: lanes promote,
// and unbinding may take long.
type sessions struct {
	current, next *binding
	previous      [3]*binding // newest first
	confirmed     *binding    // one of these: promoted, of which the timers have yet to hear
}

// all returns all key pairs; those that there are not are nil.
func (s *sessions) all() []*binding {
	return append([]*binding{s.current, s.next}, s.previous[:]...)
}

// bind reserves a receiver index that leads to p.
func (p *Peer) bind() (*binding, error) {
	s := &engine.Session{Peer: p.lane}
	index, err := p.dev.engine.Sessions.Add(s)
	if err != nil {
		return nil, fmt.Errorf("reserving a receiver index: %w", err)
	}
	p.dev.admitIndex(index)
	return &binding{index: index, session: s}, nil
}

// unbind gives the index up and wipes the keys. b may be nil.
func (p *Peer) unbind(b *binding) {
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
func (p *Peer) establish(b *binding, initiator bool) {
	defer p.discard()
	s := &p.sessions
	b.session.Keys.Store(b.keys)
	if !initiator {
		old := s.next
		s.next = b
		p.lane.Unconfirmed.Store(b.keys)
		p.unbind(old)
		return
	}
	crossed := s.next
	s.next = nil
	p.lane.Unconfirmed.Store(nil)
	p.succeed(b)
	if crossed != nil {
		p.retire(crossed)
	}
}

// succeed makes b the key pair to send with. What it replaces may still be received with, and is wiped only after
// lanes have turned to b.
func (p *Peer) succeed(b *binding) {
	old := p.sessions.current
	p.sessions.current = b
	p.publish()
	if old != nil {
		p.retire(old)
	}
}

// retire keeps b for what is still under way. Of those before it one more than is wanted may be left for discard.
func (p *Peer) retire(b *binding) {
	p.discard()
	s := &p.sessions
	s.previous[0], s.previous[1], s.previous[2] = b, s.previous[0], s.previous[1]
}

// discard unbinds the key pair that is too old. Lanes find none: whoever establishes what they promote has called it.
func (p *Peer) discard() {
	p.unbind(p.sessions.previous[2])
	p.sessions.previous[2] = nil
}

// promote makes the responder's new key pair, which the initiator has used, the one to send with. Lanes call it while nothing is
// staged: what else there is to do may take long, and is left to confirm. The caller holds mu.
func (p *Peer) promote() {
	s := &p.sessions
	if s.next == nil || s.next.keys != p.used.Load() {
		return
	}
	b := s.next
	s.next = nil
	p.lane.Unconfirmed.Store(nil)
	p.dev.outcomes.confirmed.Add(1)
	p.succeed(b)
	s.confirmed = b
}

// confirm does what follows from the initiator's having used the key pair. The caller holds mu.
func (p *Peer) confirm(now int64) {
	p.promote()
	p.discard()
	b := p.sessions.confirmed
	if b == nil {
		return
	}
	p.sessions.confirmed = nil
	p.completed(now)
	if b.signed {
		p.confirmed(now)
	}
}

// publish sends what was staged and then lets lanes send with the current key pair. The caller holds mu, so no lane
// can stage anything in between.
func (p *Peer) publish() {
	keys := p.sessions.current.keys
	for len(p.staged.elements) > 0 {
		p.dev.engine.Transmit(p.lane, keys, p.unstage().bytes)
	}
	p.lane.Current.Store(keys)
}

// forgetSessions erases all key pairs. The caller holds mu.
func (p *Peer) forgetSessions() {
	s := &p.sessions
	p.lane.Current.Store(nil)
	p.lane.Unconfirmed.Store(nil)
	for _, b := range s.all() {
		p.unbind(b)
	}
	*s = sessions{}
	p.forgetHello(errNoSession)
}
