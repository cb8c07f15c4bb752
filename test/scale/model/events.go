// SPDX-License-Identifier: Apache-2.0

package model

import "container/heap"

// event is something that happens at an instant, in ns. Those of one instant happen in the order they were made.
type event struct {
	at  int64
	seq uint64
	do  func()
}

// calendar is what is to happen.
type calendar struct {
	now    int64
	seq    uint64
	events eventHeap
}

// in makes f happen after so many ns.
func (c *calendar) in(ns int64, f func()) {
	c.seq++
	heap.Push(&c.events, event{at: c.now + max(ns, 0), seq: c.seq, do: f})
}

// run lets everything happen up to an instant, which becomes the present.
func (c *calendar) run(until int64) {
	for len(c.events) > 0 && c.events[0].at <= until {
		e := heap.Pop(&c.events).(event)
		c.now = e.at
		e.do()
	}
	c.now = until
}

type eventHeap []event

// Len implements heap.Interface.
func (h eventHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}

// Swap implements heap.Interface.
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *eventHeap) Push(x any) { *h = append(*h, x.(event)) }

// Pop implements heap.Interface.
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{}
	*h = (*h)[:last]
	return e
}

// fifo is a queue.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(x T) { q.items = append(q.items, x) }

// pop takes the first of a queue that is not empty.
func (q *fifo[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	return x
}

// first is the first of a queue that is not empty.
func (q *fifo[T]) first() T { return q.items[q.head] }
