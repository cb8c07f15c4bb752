// SPDX-License-Identifier: Apache-2.0

package fqcodel

// Config configures a Queue of elements T.
type Config[T any] struct {
	Params
	// Flows is the number of buckets to which flows are hashed, a power of two.
	Flows int
	// Quantum is the number of bytes that a flow may send per round.
	Quantum int
	// Elements and Bytes bound the content of the queue.
	Elements, Bytes int
	// Signal signals congestion on one packet of an element, by a mark or by dropping it. It returns whether the element has no
	// packets left. It must not be nil.
	Signal func(*T) (empty bool)
}

// Queue is an FQ-CoDel queue.
type Queue[T any] struct {
	cfg      Config[T]
	nodes    []node[T]
	free     int // first unused node
	flows    []flow
	fresh    list // flows that were idle: new_flows of the RFC
	old      list
	elements int
	bytes    int
	largest  int // bytes of the largest element so far: maxpacket of RFC 8289
}

// none ends a linked list of indices.
const none = -1

type node[T any] struct {
	value T
	bytes int
	since int64
	next  int
}

// flow is the queue of one bucket.
type flow struct {
	first, last int // nodes
	bytes       int
	deficit     int
	next        int // flow in the same list
	listed      bool
	codel       codel
}

// list is a linked list of flows.
type list struct{ first, last int }

// New returns an empty queue.
func New[T any](cfg Config[T]) *Queue[T] {
	q := &Queue[T]{
		cfg: cfg, nodes: make([]node[T], cfg.Elements), flows: make([]flow, cfg.Flows), fresh: list{none, none}, old: list{none, none},
	}
	for i := range q.nodes {
		q.nodes[i].next = i + 1
	}
	q.nodes[len(q.nodes)-1].next = none
	for i := range q.flows {
		q.flows[i].first, q.flows[i].last = none, none
	}
	return q
}

// Len returns the number of elements in the queue.
func (q *Queue[T]) Len() int { return q.elements }

// Bytes returns the sum of the sizes with which elements were pushed.
func (q *Queue[T]) Bytes() int { return q.bytes }

// Full reports whether Push must be preceded by PopFattest.
func (q *Queue[T]) Full() bool { return q.elements == len(q.nodes) || q.bytes >= q.cfg.Bytes }

// Push appends an element of the given size to the flow with that hash. The queue must not be Full.
func (q *Queue[T]) Push(hash uint32, value T, bytes int, now int64) {
	at := q.free
	n := &q.nodes[at]
	q.free = n.next
	n.value, n.bytes, n.since, n.next = value, bytes, now, none
	i := int(hash) & (len(q.flows) - 1)
	f := &q.flows[i]
	if f.first == none {
		f.first = at
	} else {
		q.nodes[f.last].next = at
	}
	f.last = at
	f.bytes += bytes
	q.bytes += bytes
	q.elements++
	q.largest = max(q.largest, bytes)
	if !f.listed {
		f.listed, f.deficit = true, q.cfg.Quantum
		q.append(&q.fresh, i)
	}
}

// Pop removes the next element to handle; ok is false if the queue is empty. It signals congestion where CoDel asks for it
// (Config.Signal), and skips elements that have no packets left then. sparse reports that the element's flow was idle before.
func (q *Queue[T]) Pop(now int64) (value T, sparse, ok bool) {
	for {
		l := &q.fresh
		if l.first == none {
			l = &q.old
		}
		i := l.first
		if i == none {
			return value, false, false
		}
		f := &q.flows[i]
		if f.deficit <= 0 {
			f.deficit += q.cfg.Quantum
			q.rotate(l)
			continue
		}
		n, value := q.dequeue(f, now)
		if n == none {
			q.retire(l)
			continue
		}
		f.deficit -= q.nodes[n].bytes
		return value, l == &q.fresh, true
	}
}

// retire takes the first flow of l, which is empty, off the list. A fresh one becomes an old one first, if there are others: it
// could keep them from being served by being idle for a moment (RFC 8290, section 4.2).
func (q *Queue[T]) retire(l *list) {
	if l == &q.fresh && q.old.first != none {
		q.rotate(l)
		return
	}
	f := &q.flows[l.first]
	q.shift(l)
	f.listed = false
}

// dequeue removes the next element of a flow, as RFC 8289 does, section 5.5. It returns its node, which is free then, or none.
func (q *Queue[T]) dequeue(f *flow, now int64) (n int, value T) {
	c := &f.codel
	n, above := q.take(f, now)
	switch {
	case n == none:
		c.signalling = false
		return none, value
	case c.signalling && !above:
		c.signalling = false
	case c.signalling:
		for now >= c.next && c.signalling {
			c.count++
			if !q.cfg.Signal(&q.nodes[n].value) {
				c.next = q.cfg.control(c.next, c.count)
				break
			}
			if n, above = q.take(f, now); !above {
				c.signalling = false
			} else {
				c.next = q.cfg.control(c.next, c.count)
			}
		}
	case above:
		if q.cfg.Signal(&q.nodes[n].value) {
			n, _ = q.take(f, now)
		}
		c.enter(&q.cfg.Params, now)
	}
	if n == none {
		return none, value
	}
	return n, q.nodes[n].value
}

// take removes the first element of f, and reports whether it may be signalled (dodequeue of RFC 8289).
func (q *Queue[T]) take(f *flow, now int64) (n int, above bool) {
	n = q.remove(f)
	if n == none {
		f.codel.firstAbove = 0
		return none, false
	}
	return n, f.codel.above(&q.cfg.Params, now, now-q.nodes[n].since, f.bytes, q.largest)
}

// PopFattest removes the oldest element of the flow that has most bytes in the queue; ok is false if the queue is empty.
func (q *Queue[T]) PopFattest() (value T, ok bool) {
	fattest := 0
	for i := range q.flows {
		if q.flows[i].bytes > q.flows[fattest].bytes {
			fattest = i
		}
	}
	n := q.remove(&q.flows[fattest])
	if n == none {
		return value, false
	}
	return q.nodes[n].value, true
}

// remove removes the first element of f and returns its node, whose content is valid until the next Push; none if f is empty.
func (q *Queue[T]) remove(f *flow) int {
	at := f.first
	if at == none {
		return none
	}
	n := &q.nodes[at]
	f.first = n.next
	f.bytes -= n.bytes
	q.bytes -= n.bytes
	q.elements--
	n.next = q.free
	q.free = at
	return at
}

// append adds flow i to the end of l.
func (q *Queue[T]) append(l *list, i int) {
	q.flows[i].next = none
	if l.first == none {
		l.first = i
	} else {
		q.flows[l.last].next = i
	}
	l.last = i
}

// shift removes the first flow of l and returns it.
func (q *Queue[T]) shift(l *list) int {
	i := l.first
	l.first = q.flows[i].next
	return i
}

// rotate moves the first flow of l to the end of the old ones.
func (q *Queue[T]) rotate(l *list) { q.append(&q.old, q.shift(l)) }
