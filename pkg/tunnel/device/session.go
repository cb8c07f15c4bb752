// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
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

// sessions are a peer's key pairs (WireGuard paper §6.3). Messages are sent with the current one.
// Messages of previous ones may still be in flight. A responder has a next one while the initiator
// has not used it.
//
// The paper keeps one previous key pair. Two are kept here: when both sides initiate at once, the peer may send with either
// until it has heard from us. A third stays until a worker releases it: lanes promote key pairs, and releasing may take long.
type sessions struct {
	peer          *Peer
	current, next *keyBinding
	previous      [3]*keyBinding                  // newest first
	confirmed     *keyBinding                     // promoted by a lane, and not yet handled by handleConfirmed; one of the others
	confirmedKeys atomic.Pointer[session.Keypair] // the key pair of taskConfirm, which a lane may have published; see Peer.Confirm
}

// all returns all key pairs, with nil for missing ones.
func (s *sessions) all() []*keyBinding {
	return append([]*keyBinding{s.current, s.next}, s.previous[:]...)
}

// of returns the session of a key pair, nil if it has ended.
func (s *sessions) of(keys *session.Keypair) *keyBinding {
	for _, b := range s.all() {
		if b != nil && b.keys == keys {
			return b
		}
	}
	return nil
}

// inUse returns the current session for exchanges.
func (s *sessions) inUse() pqexchange.Session {
	if s.current == nil {
		return pqexchange.Session{}
	}
	return pqexchange.Session{Exchange: &s.current.exchange, Keys: s.current.keys}
}

// controlKeys returns the key pair to send control messages and keepalives with, nil for none. It
// is the key pair of the lanes, or a restricted one. The caller holds mu.
func (s *sessions) controlKeys() *session.Keypair {
	if keys := s.peer.engine.Current.Load(); keys != nil {
		return keys
	}
	return s.inUse().Keys
}

// endBase ends the sessions that have no key: the policy says otherwise than before whether they may carry data. If the peer may send with one
// from now on, all sessions end, and a handshake starts. The caller holds mu.
func (s *sessions) endBase(now int64) {
	p := s.peer
	isBase := func(b *keyBinding) bool { return b != nil && !b.exchange.Key().Named }
	if !isBase(s.current) && !isBase(s.next) {
		for i, b := range s.previous {
			if !isBase(b) {
				continue
			}
			if s.confirmed == b {
				s.confirmed = nil
			}
			s.release(b)
			s.previous[i] = nil
		}
		return
	}
	live := s.isLive(now)
	s.erase()
	p.handshake.endAttempt()
	if live {
		p.handshake.renew(now)
	}
}

// has reports whether p has a key pair to send or receive with. The caller holds mu.
func (s *sessions) has() bool { return s.controlKeys() != nil || s.next != nil }

// establish adds b, whose keys are complete. An initiator sends with it at once, a responder only after the initiator has
// used it. Staged packets leave before lanes may use the keys. The caller holds mu.
func (s *sessions) establish(b *keyBinding, initiator bool) {
	defer s.releaseExcess()
	b.session.Keys.Store(b.keys)
	if !initiator {
		s.setUnconfirmed(b.keys)
		s.promoteNext() // if a lane has published it
		old := s.next
		s.next = b
		s.release(old)
		return
	}
	s.setUnconfirmed(nil)
	s.promoteNext()
	crossed := s.next
	s.next = nil
	s.promote(b)
	if crossed != nil {
		s.retire(crossed)
	}
}

// promoteNext promotes the responder's new key pair if the initiator has used it. A lane may have published it already. The caller holds mu.
func (s *sessions) promoteNext() {
	p := s.peer
	if s.next == nil || s.next.keys != s.confirmedKeys.Load() {
		return
	}
	b := s.next
	s.next = nil
	if p.engine.Unconfirmed.Load() == b.keys {
		s.setUnconfirmed(nil)
	}
	p.dev.counts.handshakes.confirmed.Add(1)
	s.promote(b)
	s.confirmed = b
}

// promote makes b the current key pair, with which lanes send unless it is restricted. The old one still receives, and is wiped only after lanes have switched to b.
func (s *sessions) promote(b *keyBinding) {
	old := s.current
	s.current = b
	if b.keys.Restricted() {
		s.clearCurrent()
	} else {
		s.publish(b.keys)
	}
	if old != nil {
		s.retire(old)
	}
	s.peer.quantum.begin()
}

// retire keeps b for messages in flight. It may keep one key pair too many, which releaseExcess releases.
func (s *sessions) retire(b *keyBinding) {
	s.releaseExcess()
	s.previous[0], s.previous[1], s.previous[2] = b, s.previous[0], s.previous[1]
}

// releaseExcess releases the oldest key pair.
func (s *sessions) releaseExcess() {
	s.release(s.previous[2])
	s.previous[2] = nil
}

// erase erases all key pairs and the result of the hello exchange. The caller holds mu.
func (s *sessions) erase() {
	p := s.peer
	s.clearKeys()
	for _, b := range s.all() {
		s.release(b)
	}
	s.current, s.next, s.previous, s.confirmed = nil, nil, [3]*keyBinding{}, nil
	p.quantum.end()
	p.hello.queue.Discard()
	p.hello.reset(hello.ErrNoSession)
	p.noteChange()
}

// reserve reserves a receiver index that leads to p.
func (s *sessions) reserve() (*keyBinding, error) {
	p := s.peer
	next := &engine.Session{Peer: p.engine}
	index, err := p.dev.engine.Sessions.Add(next)
	if err != nil {
		return nil, fmt.Errorf("reserving a receiver index: %w", err)
	}
	b := &keyBinding{index: index, session: next}
	p.dev.outer.admitIndex(b)
	p.noteChange()
	return b, nil
}

// release releases the index and wipes the keys. b may be nil.
func (s *sessions) release(b *keyBinding) {
	p := s.peer
	if b == nil {
		return
	}
	p.dev.outer.refuseIndex(b) // before the index can be reserved again
	p.dev.engine.Sessions.Remove(b.index)
	b.session.Keys.Store(nil)
	b.exchange.Wipe()
	if b.keys != nil {
		b.keys.Wipe()
	}
}

// handleConfirmed promotes the responder's new key pair if the initiator has used it, and does what follows. The caller holds mu.
func (s *sessions) handleConfirmed(now int64) {
	p := s.peer
	s.promoteNext()
	s.releaseExcess()
	b := s.confirmed
	if b == nil {
		return
	}
	s.confirmed = nil
	p.handshake.complete(b, now)
	if b.signed {
		p.hello.sessionConfirmed(now)
	}
}

// isLive reports whether the peer may send or receive with a present session. The caller holds mu.
func (s *sessions) isLive(now int64) bool {
	return s.next != nil || s.controlKeys().Usable(now)
}

// hasSent reports whether a message with this header was sent to the peer in the present session.
func (s *sessions) hasSent(receiver uint32, counter uint64) bool {
	keys := s.peer.engine.Current.Load()
	return keys != nil && keys.Remote() == receiver && keys.HasSent(counter)
}

// publish sends the staged trains with keys, and then lets lanes send with them. Lanes may stage
// further ones meanwhile, which are also sent. Each round leaves room for half of the trains that
// maxPublished still permits, so that it ends however fast they are. The caller holds mu.
func (s *sessions) publish(keys *session.Keypair) {
	p := s.peer
	for sent := 0; ; {
		trains := s.publishOrTake(keys, min((maxPublished-sent)/2, maxStaged))
		if len(trains) == 0 {
			return
		}
		sent += len(trains)
		for _, s := range trains {
			p.dev.engine.Transmit(p.engine, keys, s.bytes)
		}
	}
}

// publishOrTake lets lanes send with keys if no train is staged. Else it removes and returns all, and lets lanes add room trains until it is
// called again.
func (s *sessions) publishOrTake(keys *session.Keypair, room int) (trains []*stagedTrain) {
	p := s.peer
	all, own := &p.dev.staged, &p.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	own.sending = room + 1
	if own.trains.Len() == 0 {
		own.sending = 0
		p.engine.Current.Store(keys)
	}
	for e := own.trains.Front(); e != nil; e = own.trains.Front() {
		s := e.Value.(*stagedTrain)
		all.remove(s)
		trains = append(trains, s)
	}
	return trains
}

// confirm notes that the peer has used keys, and lets lanes send with it if no train is staged. It returns false if keys is not the unconfirmed key
// pair any more. Lanes call it.
func (s *sessions) confirm(keys *session.Keypair) bool {
	p := s.peer
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	if p.engine.Unconfirmed.Load() != keys {
		return false
	}
	s.confirmedKeys.Store(keys)
	if keys.Restricted() {
		return true
	}
	if p.staged.trains.Len() == 0 && p.staged.sending == 0 {
		p.engine.Current.Store(keys)
	}
	return true
}

// clearKeys removes the current and the unconfirmed key pair.
func (s *sessions) clearKeys() {
	p := s.peer
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.engine.Current.Store(nil)
	p.engine.Unconfirmed.Store(nil)
}

// clearCurrent removes the current key pair.
func (s *sessions) clearCurrent() {
	p := s.peer
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.engine.Current.Store(nil)
}

// setUnconfirmed sets the unconfirmed key pair, nil for none. Afterwards no lane confirms the one before.
func (s *sessions) setUnconfirmed(keys *session.Keypair) {
	p := s.peer
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.engine.Unconfirmed.Store(keys)
}
