// SPDX-License-Identifier: Apache-2.0

package tuntest

import "sync"

// fakeRing is one direction of a fake queue: a bounded FIFO of trains whose memory is reused.
type fakeRing struct {
	mu      sync.Mutex
	changed sync.Cond
	slots   [][]byte
	head    int
	count   int
	free    [][]byte // a stack
	closed  bool
	stopped bool // by StopReading
}

func newFakeRing(depth int) *fakeRing {
	r := &fakeRing{slots: make([][]byte, depth)}
	r.changed.L = &r.mu
	return r
}

// push copies a train in. It returns false when the ring is full or closed.
func (r *fakeRing) push(buffers ...[]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.count == len(r.slots) {
		return false
	}
	var train []byte
	if last := len(r.free) - 1; last >= 0 {
		train, r.free = r.free[last][:0], r.free[:last]
	}
	for _, b := range buffers {
		train = append(train, b...)
	}
	r.slots[(r.head+r.count)%len(r.slots)] = train
	r.count++
	r.changed.Signal()
	return true
}

// pop copies the oldest train into buf and returns its length. mu must be held and count must be positive.
func (r *fakeRing) pop(buf []byte) int {
	train := r.slots[r.head]
	r.slots[r.head] = nil
	r.head = (r.head + 1) % len(r.slots)
	r.count--
	r.free = append(r.free, train)
	return copy(buf, train)
}

// wait blocks until the ring has a train, is closed or giveUp returns true. It reports whether there is a train. mu must be
// held.
func (r *fakeRing) wait(giveUp func() bool) bool {
	for r.count == 0 && !r.closed {
		if giveUp != nil && giveUp() {
			return false
		}
		r.changed.Wait()
	}
	return r.count > 0
}

// ended reports whether reading is impossible. mu must be held.
func (r *fakeRing) ended() bool { return r.closed || r.stopped }

// setStopped sets stopped, and wakes all that wait.
func (r *fakeRing) setStopped(stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = stopped
	r.changed.Broadcast()
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
