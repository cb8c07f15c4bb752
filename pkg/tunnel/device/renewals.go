// SPDX-License-Identifier: Apache-2.0

package device

import (
	"container/list"
	"sync"
)

// maxRenewals is the number of sessions that a device renews at the same time. It is half of what puts a device under load, so that a
// device with many peers does not ask for cookies because of the answers to its own initiations.
const maxRenewals = underLoadLen / 2

// renewals paces the renewal of sessions that a device has erased, which may be those of all peers at once. A peer has its turn until it has
// a session or has not answered for the first two retryIntervals. Peers for which packets wait need no turn. Its lock comes after Peer.mu.
type renewals struct {
	mu      sync.Mutex
	max     int
	running int       // peers that have their turn
	waiting list.List // of *Peer, in the order of their turns
}

// renewal is the part of one peer in renewals, whose lock guards it.
type renewal struct {
	waiting *list.Element // nil while the peer does not wait
	running bool
}

// enter requests a turn for the peer, and reports whether it has one at once. Otherwise taskRenew is posted when its turn comes.
func (r *renewals) enter(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &p.renewal
	switch {
	case s.running:
	case s.waiting != nil:
	case r.running < r.max:
		r.running++
		s.running = true
	default:
		s.waiting = r.waiting.PushBack(p)
	}
	return s.running
}

// contains reports whether the peer waits for its turn.
func (r *renewals) contains(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.renewal.waiting != nil
}

// has reports whether the peer has its turn.
func (r *renewals) has(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.renewal.running
}

// concerns reports whether the peer has its turn or waits for it.
func (r *renewals) concerns(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.renewal != (renewal{})
}

// withdraw ends the wait of the peer for its turn, and reports whether it waited.
func (r *renewals) withdraw(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remove(p)
}

// remove is withdraw with the lock held.
func (r *renewals) remove(p *Peer) bool {
	s := &p.renewal
	if s.waiting == nil {
		return false
	}
	r.waiting.Remove(s.waiting)
	s.waiting = nil
	return true
}

// leave ends the turn of the peer, or its wait for one. It does nothing if there is none.
func (r *renewals) leave(p *Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(p)
	s := &p.renewal
	if !s.running {
		return
	}
	s.running = false
	r.running--
	if first := r.waiting.Front(); first != nil {
		next := r.waiting.Remove(first).(*Peer)
		next.renewal = renewal{running: true}
		r.running++
		next.post(taskRenew)
	}
}
