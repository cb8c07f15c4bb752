// SPDX-License-Identifier: Apache-2.0

package device

import (
	"container/list"
	"sync"
)

// maxRenewals is the number of sessions that a device renews at the same time. It is half of what puts a device under load, so that a
// device with many peers does not ask for cookies because of the answers to its own initiations.
const maxRenewals = underLoadLen / 2

// turns paces work for peers that may be due for all of them at once. Its lock comes after Peer.mu.
//
// Device.renewals paces the renewal of sessions that a device has erased. A peer has its turn until it has a session or has not answered for the
// first two retryIntervals. Peers for which packets wait need no turn. Device.exchanges paces post-quantum exchanges.
type turns struct {
	of      func(*Peer) *turn
	task    uint32 // posted when the turn of a peer comes
	mu      sync.Mutex
	max     int
	running int       // peers that have their turn
	waiting list.List // of *Peer, in the order of their turns
}

// turn is the part of one peer in turns, whose lock guards it.
type turn struct {
	waiting *list.Element // nil while the peer does not wait
	running bool
}

// init sets the number of peers that have their turn at a time, the task that is posted to others when theirs comes, and where their part is.
func (r *turns) init(limit int, task uint32, of func(*Peer) *turn) {
	r.max, r.task, r.of = limit, task, of
}

// enter requests a turn for the peer, and reports whether it has one at once. Otherwise a task is posted when its turn comes.
func (r *turns) enter(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(p)
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
func (r *turns) contains(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(p).waiting != nil
}

// has reports whether the peer has its turn.
func (r *turns) has(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(p).running
}

// concerns reports whether the peer has its turn or waits for it.
func (r *turns) concerns(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.of(p) != (turn{})
}

// withdraw ends the wait of the peer for its turn, and reports whether it waited.
func (r *turns) withdraw(p *Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remove(p)
}

// remove is withdraw with the lock held.
func (r *turns) remove(p *Peer) bool {
	s := r.of(p)
	if s.waiting == nil {
		return false
	}
	r.waiting.Remove(s.waiting)
	s.waiting = nil
	return true
}

// leave ends the turn of the peer, or its wait for one. It does nothing if there is none.
func (r *turns) leave(p *Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(p)
	s := r.of(p)
	if !s.running {
		return
	}
	s.running = false
	r.running--
	if first := r.waiting.Front(); first != nil {
		next := r.waiting.Remove(first).(*Peer)
		*r.of(next) = turn{running: true}
		r.running++
		next.post(r.task)
	}
}
