// SPDX-License-Identifier: Apache-2.0

package model

import "container/heap"

// event is a function to call at a time, in ns. Events of the same time run in the order in which they were added.
type event struct {
	at  int64
	seq uint64
	do  func()
}

// eventQueue holds future events.
type eventQueue struct {
	now    int64
	seq    uint64
	events eventHeap
}

// after calls f after ns nanoseconds.
func (q *eventQueue) after(ns int64, f func()) {
	q.seq++
	heap.Push(&q.events, event{at: q.now + max(ns, 0), seq: q.seq, do: f})
}

// runUntil runs all events up to a time, and sets the clock to that time.
func (q *eventQueue) runUntil(until int64) {
	for len(q.events) > 0 && q.events[0].at <= until {
		e := heap.Pop(&q.events).(event)
		q.now = e.at
		e.do()
	}
	q.now = until
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

// fifo is a first-in, first-out queue.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(x T) { q.items = append(q.items, x) }

// pop removes and returns the first item of a queue that is not empty.
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

// first returns the first item of a queue that is not empty.
func (q *fifo[T]) first() T { return q.items[q.head] }
