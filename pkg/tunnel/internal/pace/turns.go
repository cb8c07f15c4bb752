// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"container/list"
	"sync"
)

// Turns paces work for peers of type P that may be due for all of them at once. It is safe for
// concurrent use. Its lock is held during calls of At and Come.
type Turns[P any] struct {
	At   func(P) *Turn // the part of a peer, which stays where it is while it is not zero
	Come func(P)       // called when the turn of a peer comes that has waited

	mu      sync.Mutex
	limit   int
	running int       // peers that have their turn
	waiting list.List // of P, in the order of their turns
}

// Turn is the part of one peer in Turns, whose lock guards it.
type Turn struct {
	waiting *list.Element // nil while the peer does not wait
	running bool
}

// SetLimit sets the number of peers that have their turn at a time.
func (r *Turns[P]) SetLimit(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = n
}

// Enter requests a turn for the peer, and reports whether it has one at once.
func (r *Turns[P]) Enter(p P) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.At(p)
	switch {
	case t.running || t.waiting != nil:
	case r.running < r.limit:
		r.running++
		t.running = true
	default:
		t.waiting = r.waiting.PushBack(p)
	}
	return t.running
}

// State reports whether the peer has its turn, and whether it waits for one.
func (r *Turns[P]) State(p P) (running, waiting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.At(p)
	return t.running, t.waiting != nil
}

// Concerns reports whether the peer has its turn or waits for it.
func (r *Turns[P]) Concerns(p P) bool {
	running, waiting := r.State(p)
	return running || waiting
}

// Count returns the number of peers that have their turn, and of peers that wait.
func (r *Turns[P]) Count() (running, waiting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running, r.waiting.Len()
}

// Withdraw ends the wait of the peer for its turn, and reports whether it waited.
func (r *Turns[P]) Withdraw(p P) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remove(r.At(p))
}

// remove is Withdraw with the lock held.
func (r *Turns[P]) remove(t *Turn) bool {
	if t.waiting == nil {
		return false
	}
	r.waiting.Remove(t.waiting)
	t.waiting = nil
	return true
}

// Leave ends the turn of the peer, or its wait for one. It does nothing if there is none.
func (r *Turns[P]) Leave(p P) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.At(p)
	r.remove(t)
	if !t.running {
		return
	}
	t.running = false
	r.running--
	if first := r.waiting.Front(); first != nil {
		next := r.waiting.Remove(first).(P)
		*r.At(next) = Turn{running: true}
		r.running++
		r.Come(next)
	}
}
