// SPDX-License-Identifier: Apache-2.0

package xsk

import "sync/atomic"

// indices are the shared variables of a ring. Producer and consumer increase and wrap at 2³²; the entries between
// them are in use.
//
// The producer writes items, then its index. The consumer reads that index, then the items, then
// writes its own index. Each index must be written with release and read with acquire order. On
// the kernel's side these are barriers A to D in net/xdp/xsk_queue.h. Go's atomics are
// sequentially consistent, which is stronger. On arm64 they are the required LDAR and STLR; on
// amd64 each store is one XCHG per batch. The stronger order is necessary. The producer writes its
// index and then reads the flags, while a driver sets the flag and then reads the index again.
// Only a full barrier on both sides keeps them from missing each other.
type indices struct {
	producer, consumer *atomic.Uint32
	flags              *atomic.Uint32
}

// flagNeedWakeup is set while the kernel sleeps (XDP_RING_NEED_WAKEUP).
const flagNeedWakeup = 1 << 0

func (x indices) needsWakeup() bool { return x.flags.Load()&flagNeedWakeup != 0 }

// pending returns the number of items in the ring, for any goroutine. It reads the consumer's index first: read last,
// that index may already be ahead of the producer's, and the difference would be four billion. So items that both
// ends move in between count as pending.
func (x indices) pending() uint32 {
	taken := x.consumer.Load()
	return x.producer.Load() - taken
}

// producer is the filling end of a ring, for one goroutine.
type producer[T Desc | uint64] struct {
	indices
	items []T    // the length is a power of two
	next  uint32 // the producer's index, including unpublished items
}

func newProducer[T Desc | uint64](x indices, items []T) producer[T] {
	return producer[T]{indices: x, items: items, next: x.producer.Load()}
}

// push writes an item to the ring, which must have room, without publishing it.
func (p *producer[T]) push(item T) {
	p.items[p.next&uint32(len(p.items)-1)] = item
	p.next++
}

// publish makes all pushed items visible to the consumer.
func (p *producer[T]) publish() { p.producer.Store(p.next) }

// consumer is the emptying end of a ring, for one goroutine.
type consumer[T Desc | uint64] struct {
	indices
	items []T
	next  uint32 // the consumer's index
	limit uint32 // the producer's index when it was last read
}

func newConsumer[T Desc | uint64](x indices, items []T) consumer[T] {
	return consumer[T]{indices: x, items: items, next: x.consumer.Load(), limit: x.producer.Load()}
}

// peek copies the oldest items to into without removing them, and returns their number. It reads the producer's index
// only if the known items do not fill into.
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

// take removes the n oldest items, which must have been peeked.
func (c *consumer[T]) take(n int) {
	if n > 0 {
		c.next += uint32(n)
		c.consumer.Store(c.next)
	}
}
