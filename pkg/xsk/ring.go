// SPDX-License-Identifier: Apache-2.0

package xsk

import "sync/atomic"

// indices are the shared words of a ring. Producer and consumer count up for ever and wrap at 2³²; what lies between
// them is full.
//
// Who fills the ring writes items, then the producer's index; who empties it reads that index, then items, then writes
// the consumer's. Each index must be written with release and read with acquire order (the kernel's side: barriers A to
// D in net/xdp/xsk_queue.h). Go's atomics are sequentially consistent, which is more: on arm64 they are the LDAR and
// STLR that this takes, and on amd64 each store is one XCHG per batch. It is also needed: after the producer's index is
// written the flags are read, while a driver sets the flag and then looks at the index once more; only a full barrier
// on both sides keeps them from missing each other.
type indices struct {
	producer, consumer *atomic.Uint32
	flags              *atomic.Uint32
}

// flagNeedWakeup says that the kernel sleeps (XDP_RING_NEED_WAKEUP).
const flagNeedWakeup = 1 << 0

func (x indices) needsWakeup() bool { return x.flags.Load()&flagNeedWakeup != 0 }

// pending is how many items are in the ring, for any goroutine. The consumer's index is read first: read last, it may be ahead of the
// producer's by then, and the difference four billion. So what both ends do in between counts as pending.
func (x indices) pending() uint32 {
	taken := x.consumer.Load()
	return x.producer.Load() - taken
}

// producer is the end of a ring that fills it. It belongs to one goroutine.
type producer[T Desc | uint64] struct {
	indices
	items []T    // a power of two of them
	next  uint32 // the producer's index, with what is not published yet
	limit uint32 // where the ring is full, when the consumer's index was last read
}

func newProducer[T Desc | uint64](x indices, items []T) producer[T] {
	return producer[T]{
		indices: x, items: items, next: x.producer.Load(), limit: x.consumer.Load() + uint32(len(items)),
	}
}

// room returns how many items fit, and looks for more room only if there are fewer than want.
func (p *producer[T]) room(want int) int {
	if int(p.limit-p.next) < want {
		p.limit = p.consumer.Load() + uint32(len(p.items))
	}
	return int(p.limit - p.next)
}

// push puts an item into the ring, which must have room, and leaves it unpublished.
func (p *producer[T]) push(item T) {
	p.items[p.next&uint32(len(p.items)-1)] = item
	p.next++
}

// publish shows the consumer all that was pushed.
func (p *producer[T]) publish() { p.producer.Store(p.next) }

// consumer is the end of a ring that empties it. It belongs to one goroutine.
type consumer[T Desc | uint64] struct {
	indices
	items []T
	next  uint32 // the consumer's index
	limit uint32 // the producer's index when it was last read
}

func newConsumer[T Desc | uint64](x indices, items []T) consumer[T] {
	return consumer[T]{indices: x, items: items, next: x.consumer.Load(), limit: x.producer.Load()}
}

// peek copies items to into without taking them, oldest first, and returns how many. It looks for new ones only when
// those it knows of do not fill into.
func (c *consumer[T]) peek(into []T) int {
	if int(c.limit-c.next) < len(into) {
		c.limit = c.producer.Load()
	}
	into = into[:min(len(into), int(c.limit-c.next))]
	first := c.items[c.next&uint32(len(c.items)-1):]
	n := copy(into, first)
	n += copy(into[n:], c.items)
	return n
}

// take gives back the room of the n oldest items, which were peeked.
func (c *consumer[T]) take(n int) {
	if n > 0 {
		c.next += uint32(n)
		c.consumer.Store(c.next)
	}
}
