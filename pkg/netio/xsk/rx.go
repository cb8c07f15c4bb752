// SPDX-License-Identifier: Apache-2.0

package xsk

import "sync/atomic"

// rx is the receiving half. Frames circulate from the fill ring through the device to the RX ring, to the caller, and
// back. Only the half's goroutine uses the fields, except the counters.
type rx struct {
	ring   consumer[Desc]
	fill   producer[uint64]
	frames frameOwners

	received, refilled, frameOwnershipErrors atomic.Uint64
}

// start gives all frames to the kernel. It must precede bind: drivers expect at least as many frames as they have
// descriptors, and some never recover from fewer.
func (r *rx) start() {
	for i := range r.frames.owners {
		r.fill.push(r.frames.first + uint64(i)<<r.frames.shift)
	}
	r.frames.setAll(kernel)
	r.fill.publish()
}

// receive implements Socket.Receive.
func (r *rx) receive(into []Desc) int {
	n := r.ring.peek(into)
	r.ring.take(n)
	kept := 0
	for _, d := range into[:n] {
		if r.frames.move(d.Addr, kernel, user) {
			into[kept] = d
			kept++
		}
	}
	count(&r.frameOwnershipErrors, n-kept)
	count(&r.received, kept)
	return kept
}

// refill implements Socket.Refill.
func (r *rx) refill(descs []Desc) {
	invalid := 0
	for _, d := range descs {
		if !r.frames.move(d.Addr, user, kernel) {
			invalid++
			continue
		}
		r.fill.push(r.frames.base(d.Addr)) // cannot overflow: the ring has an entry for every frame
	}
	r.fill.publish()
	count(&r.refilled, len(descs)-invalid)
	count(&r.frameOwnershipErrors, invalid)
}

// count adds to a counter that a single goroutine writes.
func count(c *atomic.Uint64, n int) {
	if n != 0 {
		c.Store(c.Load() + uint64(n))
	}
}
