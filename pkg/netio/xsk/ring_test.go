// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// newRing returns a ring in Go memory whose indices begin at first.
func newRing(size int, first uint32) (producer[uint64], consumer[uint64]) {
	x := indices{producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32)}
	x.producer.Store(first)
	x.consumer.Store(first)
	items := make([]uint64, size)
	return newProducer(x, items), newConsumer(x, items)
}

// TestRingsMatchSliceQueue drives both ends at random and compares with a slice, across the wrap of the indices.
func TestRingsMatchSliceQueue(t *testing.T) {
	const size = 64
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		p, c := newRing(size, ^uint32(0)-r.Uint32N(1000))
		var queue []uint64 // pushed and not yet taken, oldest first
		published, next := 0, uint64(0)
		into := make([]uint64, 2*size)
		for range 2000 {
			switch r.IntN(4) {
			case 0:
				want := r.IntN(size + 10)
				n := min(want, p.room())
				if full := size - len(queue); n != min(want, full) {
					t.Fatalf("room for %d of %d, want %d", n, want, min(want, full))
				}
				for range n {
					p.push(next)
					queue = append(queue, next)
					next++
				}
			case 1:
				p.publish()
				published = len(queue)
			default:
				n := c.peek(into[:r.IntN(len(into))])
				if !slices.Equal(into[:n], queue[:n]) || n > published {
					t.Fatalf("peeked %v of %v, %d published", into[:n], queue, published)
				}
				if n == 0 && published > 0 && c.peek(into[:1]) == 0 {
					t.Fatal("published items are not visible")
				}
				n = r.IntN(n + 1)
				c.take(n)
				queue, published = queue[n:], published-n
			}
			if got := c.pending(); got != uint32(published) {
				t.Fatalf("got %d pending, want %d", got, published)
			}
		}
	}
}

// TestRingsPassItemsBetweenGoroutines is for the race detector: an index without acquire and release order is a race.
func TestRingsPassItemsBetweenGoroutines(t *testing.T) {
	const total = 100_000
	p, c := newRing(64, ^uint32(0)-total/2)
	var both sync.WaitGroup
	both.Go(func() {
		for next := uint64(0); next < total; {
			n := min(min(16, p.room()), int(total-next))
			if n == 0 {
				runtime.Gosched()
			}
			for ; n > 0; n-- {
				p.push(next)
				next++
			}
			p.publish()
		}
	})
	both.Go(func() {
		var into [24]uint64
		for next := uint64(0); next < total; {
			n := c.peek(into[:])
			if n == 0 {
				runtime.Gosched()
			}
			for _, item := range into[:n] {
				if item != next {
					t.Errorf("item %d, want %d", item, next)
					return
				}
				next++
			}
			c.take(n)
		}
	})
	both.Wait()
}

// TestPendingIsNeverNegative: a third goroutine sees both indices move, and must not compute a negative count.
func TestPendingIsNeverNegative(t *testing.T) {
	const total = 200_000
	p, c := newRing(64, ^uint32(0)-total/2)
	watched := c.indices
	var done atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for !done.Load() {
			if n := watched.pending(); n > 2*total {
				t.Errorf("got %d pending, want at most %d", n, 2*total)
				return
			}
		}
	})
	var into [16]uint64
	for next := 0; next < total; next += len(into) {
		for range into {
			p.push(0)
		}
		p.publish()
		c.take(c.peek(into[:]))
	}
	done.Store(true)
	all.Wait()
}

// room returns the number of free entries.
func (p *producer[T]) room() int { return len(p.items) - int(p.next-p.consumer.Load()) }
