// SPDX-License-Identifier: Apache-2.0

package fqcodel

import "math"

// packet is an element that is one packet.
type packet struct {
	id     int
	bytes  int
	pushed int64
}

// reference is a queue of one flow under CoDel, written as directly after the sources as possible. Its signals are drops and marks.
type reference struct {
	Params
	queue   []packet
	bytes   int
	signals []int // id of each signalled packet

	firstAbove, dropNext int64
	count, lastCount     uint32
	dropping             bool

	bursts, resumed int // dequeues that dropped twice, and states that went on at an old rate: shows that a test reaches them
}

func (r *reference) push(p packet) {
	r.queue = append(r.queue, p)
	r.bytes += p.bytes
}

func (r *reference) drop(p packet) { r.signals = append(r.signals, p.id) }

func (r *reference) controlLaw(t int64, count uint32) int64 {
	return t + int64(float64(r.Interval)/math.Sqrt(float64(count)))
}

// dodequeue is dodequeue of RFC 8289, section 5.6; nothing is there when the queue is empty.
func (r *reference) dodequeue(now int64) (p packet, there, okToDrop bool) {
	if len(r.queue) == 0 {
		r.firstAbove = 0
		return packet{id: -1}, false, false
	}
	p, r.queue = r.queue[0], r.queue[1:]
	r.bytes -= p.bytes
	sojourn := now - p.pushed
	if sojourn < int64(r.Target) || r.bytes <= r.MTU {
		r.firstAbove = 0
	} else {
		if r.firstAbove == 0 {
			r.firstAbove = now + int64(r.Interval)
		} else if now >= r.firstAbove {
			okToDrop = true
		}
	}
	return p, true, okToDrop
}

// dequeueRFC is dequeue of RFC 8289, section 5.5. It returns the id of the packet to deliver, or -1.
func (r *reference) dequeueRFC(now int64) int {
	p, _, ok := r.dodequeue(now)
	if r.dropping {
		if !ok {
			r.dropping = false
		}
		for n := 0; now >= r.dropNext && r.dropping; n++ {
			r.drop(p)
			r.count++
			p, _, ok = r.dodequeue(now)
			if !ok {
				r.dropping = false
			} else {
				r.dropNext = r.controlLaw(r.dropNext, r.count)
			}
			if n == 1 {
				r.bursts++
			}
		}
	} else if ok {
		r.drop(p)
		p, _, _ = r.dodequeue(now)
		r.dropping = true
		r.begin(now)
	}
	return p.id
}

// begin chooses the rate of a new dropping state, in which RFC 8289 and Linux agree.
func (r *reference) begin(now int64) {
	delta := r.count - r.lastCount
	r.count = 1
	if delta > 1 && now-r.dropNext < 16*int64(r.Interval) {
		r.count = delta
		r.resumed++
	}
	r.dropNext = r.controlLaw(now, r.count)
	r.lastCount = r.count
}

// dequeueLinux does what codel_dequeue of Linux does with ECN (include/net/codel_impl.h): it marks a packet where mark returns true, and
// delivers it. Unlike Linux it takes exact square roots, and a packet at the very end of the first interval may be signalled, as in the RFC.
func (r *reference) dequeueLinux(now int64, mark func(id int) bool) int {
	p, there, ok := r.dodequeue(now)
	switch {
	case !there:
		r.dropping = false
	case r.dropping && !ok:
		r.dropping = false
	case r.dropping:
		for n := 0; r.dropping && now >= r.dropNext; n++ {
			r.count++
			r.drop(p)
			if mark(p.id) {
				r.dropNext = r.controlLaw(r.dropNext, r.count)
				return p.id
			}
			if p, _, ok = r.dodequeue(now); ok {
				r.dropNext = r.controlLaw(r.dropNext, r.count)
			}
			r.dropping = ok
			if n == 1 {
				r.bursts++
			}
		}
	case ok:
		r.drop(p)
		if !mark(p.id) {
			p, _, _ = r.dodequeue(now)
		}
		r.dropping = true
		r.begin(now)
	}
	return p.id
}
