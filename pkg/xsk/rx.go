// SPDX-License-Identifier: Apache-2.0

package xsk

import "sync/atomic"

// rx is the receiving half: frames go round from the fill ring through the device to the RX ring, to the caller, and
// back. All of a half's fields but the counters belong to its goroutine.
type rx struct {
	ring   consumer[Desc]
	fill   producer[uint64]
	frames ledger

	received, refilled, misowned, wakes atomic.Uint64
}

// start gives the kernel all frames. It must come before bind: drivers expect to find as many as they have
// descriptors, and some never recover from less.
func (r *rx) start() {
	for i := range r.frames.owners {
		r.fill.push(r.frames.first + uint64(i)<<r.frames.shift)
	}
	r.frames.give(kernel)
	r.fill.publish()
}

// receive implements Socket.Receive.
func (r *rx) receive(into []Desc) int {
	n := r.ring.peek(into)
	whole := n
	if n > 0 && into[n-1].More() {
		whole = wholePackets(into[:n])
	}
	r.ring.take(whole)
	kept := 0
	for _, d := range into[:whole] {
		if r.frames.move(d.Addr, kernel, user) {
			into[kept] = d
			kept++
		}
	}
	count(&r.misowned, whole-kept)
	count(&r.received, kept)
	return kept
}

// wholePackets returns how many of the descriptors belong to packets that are whole, or all when none is.
func wholePackets(descs []Desc) int {
	for n := len(descs); n > 0; n-- {
		if !descs[n-1].More() {
			return n
		}
	}
	return len(descs)
}

// refill implements Socket.Refill.
func (r *rx) refill(descs []Desc) {
	strays := 0
	for _, d := range descs {
		if !r.frames.move(d.Addr, user, kernel) {
			strays++
			continue
		}
		r.fill.push(r.frames.base(d.Addr)) // there is room: the ring has a place for every frame
	}
	r.fill.publish()
	count(&r.refilled, len(descs)-strays)
	count(&r.misowned, strays)
}

// count adds to a counter that only one goroutine writes.
func count(c *atomic.Uint64, n int) {
	if n != 0 {
		c.Store(c.Load() + uint64(n))
	}
}
