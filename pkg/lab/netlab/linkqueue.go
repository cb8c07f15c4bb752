// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"time"
)

const (
	// maxFrame is the largest element that a TAP hands over: a virtio-net header, an Ethernet header and 64 KiB.
	maxFrame = 64<<10 + 64
	// frameHeader precedes each element in the ring: when it is due, and its length, 8 bytes each.
	frameHeader = 16
	slotSize    = frameHeader + maxFrame
	// unlimitedRate bounds the memory of a link without a rate: it holds this many bits per second for the length of the delay.
	unlimitedRate = 20e9
	// ringSpare is memory beyond that, for bursts.
	ringSpare = 16 << 20
)

// Link configures the path that a cable emulates in each direction: a bottleneck with a tail-drop queue, and a delay behind it.
type Link struct {
	// Delay is the delay of one direction. A round trip takes at least twice as long.
	Delay time.Duration
	// BitsPerSecond is the rate of the bottleneck, Ethernet headers included; 0 is none.
	BitsPerSecond float64
	// Queue is the size of the bottleneck's queue in bytes. A packet or train is accepted if the queue is not full.
	Queue int
}

// linkQueue holds the elements of one direction of a Link until they are due, in order. Times are in nanoseconds of any clock
// that never goes back. One goroutine uses it.
type linkQueue struct {
	delay int64
	limit float64 // of the bottleneck's queue, in bytes
	rate  float64 // bytes per nanosecond; 0: no bottleneck
	idle  float64 // when the bottleneck will have sent all that it accepted

	// ring has the elements, each in one piece: from head to tail, or from head to end and from 0 to tail.
	ring            []byte
	head, tail, end int
	count           int
}

func newLinkQueue(l Link) *linkQueue {
	bits := l.BitsPerSecond
	if bits == 0 {
		bits = unlimitedRate
	}
	size := int(l.Delay.Seconds()*bits/8) + l.Queue + ringSpare
	return &linkQueue{
		delay: int64(l.Delay), limit: float64(l.Queue), rate: l.BitsPerSecond / 8 / 1e9,
		ring: make([]byte, size), end: size,
	}
}

// reserve returns the memory for the next element, or nil if the ring is full.
func (q *linkQueue) reserve() []byte {
	switch {
	case q.count == 0:
		q.head, q.tail, q.end = 0, 0, len(q.ring)
	case q.tail > q.head && len(q.ring)-q.tail < slotSize && q.head >= slotSize:
		q.end, q.tail = q.tail, 0
	}
	room := len(q.ring) - q.tail
	if q.count > 0 && q.tail <= q.head {
		room = q.head - q.tail
	}
	if room < slotSize {
		return nil
	}
	return q.ring[q.tail+frameHeader : q.tail+slotSize]
}

// commit adds the first n bytes of the reserved memory at a time. wire is the number of bytes that
// the bottleneck has to send for them. It reports false if the bottleneck's queue is full and the
// element was dropped.
func (q *linkQueue) commit(now int64, n, wire int) bool {
	due, ok := q.admit(now, wire)
	if !ok {
		return false
	}
	binary.NativeEndian.PutUint64(q.ring[q.tail:], uint64(due))
	binary.NativeEndian.PutUint64(q.ring[q.tail+8:], uint64(n))
	q.tail += (frameHeader + n + 7) &^ 7
	q.count++
	return true
}

// admit passes an element through the bottleneck: a virtual clock, since nothing but its time is needed.
func (q *linkQueue) admit(now int64, wire int) (due int64, ok bool) {
	if q.rate == 0 {
		return now + q.delay, true
	}
	q.idle = max(q.idle, float64(now))
	if (q.idle-float64(now))*q.rate >= q.limit {
		return 0, false
	}
	q.idle += float64(wire) / q.rate
	return int64(q.idle) + q.delay, true
}

// next returns the oldest element and when it is due; false if there is none.
func (q *linkQueue) next() (frame []byte, due int64, ok bool) {
	if q.count == 0 {
		return nil, 0, false
	}
	if q.head == q.end {
		q.head, q.end = 0, len(q.ring)
	}
	slot := q.ring[q.head:]
	n := int(binary.NativeEndian.Uint64(slot[8:]))
	return slot[frameHeader : frameHeader+n], int64(binary.NativeEndian.Uint64(slot)), true
}

// pop removes the element that next returned.
func (q *linkQueue) pop() {
	frame, _, _ := q.next()
	q.head += (frameHeader + len(frame) + 7) &^ 7
	q.count--
}
