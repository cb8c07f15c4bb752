// SPDX-License-Identifier: Apache-2.0

package tun

import "sync"

// fakeRing is one direction of a fake queue: a bounded queue of elements, whose memory is used again.
type fakeRing struct {
	mu      sync.Mutex
	changed sync.Cond
	slots   [][]byte
	head    int
	count   int
	free    [][]byte // the last used first
	closed  bool
}

func newFakeRing(depth int) *fakeRing {
	r := &fakeRing{slots: make([][]byte, depth)}
	r.changed.L = &r.mu
	return r
}

// push copies an element in. It returns false when the ring is full or closed.
func (r *fakeRing) push(parts ...[]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.count == len(r.slots) {
		return false
	}
	var element []byte
	if last := len(r.free) - 1; last >= 0 {
		element, r.free = r.free[last][:0], r.free[:last]
	}
	for _, part := range parts {
		element = append(element, part...)
	}
	r.slots[(r.head+r.count)%len(r.slots)] = element
	r.count++
	r.changed.Signal()
	return true
}

// pop copies the first element into buf. Call it with mu held and count > 0.
func (r *fakeRing) pop(buf []byte) int {
	element := r.slots[r.head]
	r.slots[r.head] = nil
	r.head = (r.head + 1) % len(r.slots)
	r.count--
	r.free = append(r.free, element)
	return copy(buf, element)
}

// await blocks until there is an element, and returns false when the ring was closed or giveUp says so. Call it with mu
// held.
func (r *fakeRing) await(giveUp func() bool) bool {
	for r.count == 0 && !r.closed {
		if giveUp != nil && giveUp() {
			return false
		}
		r.changed.Wait()
	}
	return !r.closed
}

func (r *fakeRing) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed.Broadcast()
}

func (r *fakeRing) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.changed.Broadcast()
}
