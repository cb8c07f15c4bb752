// SPDX-License-Identifier: Apache-2.0

package fqcodel

// Config configures a Queue of elements T.
type Config[T any] struct {
	Params
	// Small, if set, takes the place of Params for elements of at most SmallSize bytes.
	Small     *Params
	SmallSize int
	// Flows is the number of flow queues to which hashes are mapped, a power of two.
	Flows int
	// Quantum is the number of bytes that a flow may send per round. If elements are much larger, Pop goes around several times for each.
	Quantum int
	// Elements bounds the number of elements. Memory for them is allocated by New.
	Elements int
	// Bytes bounds the sum of their sizes; the element that reaches the bound may exceed it.
	Bytes int
	// Signal signals congestion on one packet of an element that Pop is about to return: it marks the packet, or drops it from the
	// element. It reports whether the element has no packets left. Such an element is not returned; releasing what it refers to is up
	// to Signal. Signal must not be nil, not keep the pointer, and not call methods of the Queue.
	Signal func(*T) (empty bool)
	// Blocked, if set, reports that an element cannot leave the queue now. Pop sets its flow aside until Resume.
	Blocked func(*T) bool
}

// Queue is an FQ-CoDel queue. It owns elements from Push until it returns them or passes them to Config.Signal, and keeps no reference
// afterwards. Times are nanoseconds of one clock of the caller, which is positive and never goes back.
//
// A Queue belongs to one goroutine. Nothing but New allocates.
type Queue[T any] struct {
	cfg      Config[T]
	nodes    []node[T]
	free     int32 // first node that was released
	unused   int32 // first node that was never used, as those behind it: their memory is not touched before
	flows    []flow
	backlog  []int // bytes of each flow; not in flow, because PopFattest reads all of them
	fresh    list  // flows that were idle: new_flows of RFC 8290
	old      list  // old_flows
	aside    list  // flows whose first element was Blocked
	elements int
	bytes    int
}

// none ends a linked list of indices.
const none = -1

// maxSize bounds the sizes in Config and of elements, so that deficits fit an int32.
const maxSize = 1 << 30

// node is one element in a flow, or free.
type node[T any] struct {
	value  T
	pushed int64 // time of Push
	bytes  int32
	next   int32 // node behind it
}

// flow is a queue of elements and its place in the round. It fits a cache line.
type flow struct {
	codel       codel
	first, last int32 // nodes; last is undefined while first is none
	deficit     int32 // bytes that it may still send in this round; elements may overdraw it
	next        int32 // flow behind it in the same list
	listed      bool  // it is in fresh or old
}

// list is a linked list of flows; last is undefined while first is none.
type list struct{ first, last int32 }

// New returns an empty queue. It panics if Flows is no power of two, or if a size is not positive or above 2^30 (Bytes may be).
func New[T any](cfg Config[T]) *Queue[T] {
	smallest, largest := min(cfg.Flows, cfg.Quantum, cfg.Elements, cfg.Bytes), max(cfg.Flows, cfg.Quantum, cfg.Elements)
	if smallest <= 0 || largest > maxSize || cfg.Flows&(cfg.Flows-1) != 0 {
		panic("fqcodel: invalid size in Config")
	}
	q := &Queue[T]{
		cfg:     cfg,
		nodes:   make([]node[T], cfg.Elements),
		flows:   make([]flow, cfg.Flows),
		backlog: make([]int, cfg.Flows),
		free:    none,
		fresh:   list{none, none},
		old:     list{none, none},
		aside:   list{none, none},
	}
	for i := range q.flows {
		q.flows[i].first = none
	}
	return q
}

// Len returns the number of elements in the queue.
func (q *Queue[T]) Len() int { return q.elements }

// Full reports whether a bound of Config is reached: PopFattest must make room before Push.
func (q *Queue[T]) Full() bool { return q.elements == len(q.nodes) || q.bytes >= q.cfg.Bytes }

// Push appends an element to the flow with that hash. bytes must be between 1 and 2^30. The queue must have room for an element.
func (q *Queue[T]) Push(hash uint32, value T, bytes int, now int64) {
	i := int32(hash & uint32(len(q.flows)-1))
	f, at := &q.flows[i], q.node()
	n := &q.nodes[at]
	n.value, n.pushed, n.bytes, n.next = value, now, int32(bytes), none
	if f.first == none {
		f.first = at
	} else {
		q.nodes[f.last].next = at
	}
	f.last = at
	q.backlog[i] += bytes
	q.bytes += bytes
	q.elements++
	if !f.listed {
		f.listed, f.deficit = true, int32(q.cfg.Quantum)
		q.addTail(&q.fresh, i)
	}
}

// node takes a free node.
func (q *Queue[T]) node() int32 {
	at := q.free
	if at == none {
		at = q.unused
		q.unused++
		return at
	}
	q.free = q.nodes[at].next
	return at
}

// Pop removes the next element and returns it; ok is false if the queue is empty, or all its flows are set aside. Where CoDel asks for a signal, Pop calls Config.Signal,
// and skips elements without packets. sparse reports that the flow was idle before, and has not used up its first quantum.
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
		if q.blocked(f) {
			q.addTail(&q.aside, q.removeHead(l))
			continue
		}
		if f.deficit <= 0 {
			f.deficit += int32(q.cfg.Quantum)
			q.moveToOld(l)
			continue
		}
		n := q.dequeue(i, now)
		if n == none {
			q.retire(l)
			continue
		}
		f.deficit -= q.nodes[n].bytes
		return q.release(n), l == &q.fresh, true
	}
}

// blocked reports whether the first element of f is Config.Blocked.
func (q *Queue[T]) blocked(f *flow) bool {
	return q.cfg.Blocked != nil && f.first != none && q.cfg.Blocked(&q.nodes[f.first].value)
}

// Resume makes Pop try the flows again that it has set aside.
func (q *Queue[T]) Resume() {
	for q.aside.first != none {
		q.addTail(&q.old, q.removeHead(&q.aside))
	}
}

// Ready reports whether Pop has a flow to try.
func (q *Queue[T]) Ready() bool { return q.fresh.first != none || q.old.first != none }

// Backlog returns the bytes in the queue of all flows that share the given hash's bucket.
func (q *Queue[T]) Backlog(hash uint32) int { return q.backlog[hash&uint32(len(q.flows)-1)] }

// PopFattest removes the oldest element of the flow with most bytes; ok is false if the queue is empty. It reads the sizes of all flows.
func (q *Queue[T]) PopFattest() (value T, ok bool) {
	fattest := 0
	for i, bytes := range q.backlog {
		if bytes > q.backlog[fattest] {
			fattest = i
		}
	}
	return q.PopFlow(uint32(fattest))
}

// PopFlow removes the oldest element of the flow with that hash; ok is false if it has none.
func (q *Queue[T]) PopFlow(hash uint32) (value T, ok bool) {
	n := q.unlink(int32(hash & uint32(len(q.flows)-1)))
	if n == none {
		return value, false
	}
	return q.release(n), true
}

// retire takes the first flow of l, which is empty, off the list. A fresh flow becomes an old one first if there are others. Otherwise a
// flow that sends again at once would be fresh again, and keep the old ones from being served (RFC 8290, section 4.2).
func (q *Queue[T]) retire(l *list) {
	if l == &q.fresh && q.old.first != none {
		q.moveToOld(l)
		return
	}
	q.flows[q.removeHead(l)].listed = false
}

// dequeue removes the next element of flow i that has packets, and signals congestion (dequeue of RFC 8289, section 5.5). Like a packet
// that Linux marks, an element that keeps packets ends the loop. It returns a node to release; none if the flow is empty.
func (q *Queue[T]) dequeue(i int32, now int64) int32 {
	c := &q.flows[i].codel
	n, p, above := q.take(i, now)
	if !above {
		c.signalling = false
		return n
	}
	if !c.signalling {
		if q.signal(n) {
			n, _, _ = q.take(i, now)
		}
		c.enter(p, now)
		return n
	}
	for c.signalling && now >= c.next {
		c.counted()
		empty := q.signal(n)
		if empty {
			n, p, c.signalling = q.take(i, now)
		}
		if c.signalling {
			c.next = p.control(c.next, c.count)
		}
		if !empty {
			break
		}
	}
	return n
}

// take removes the first element of flow i. It returns its parameters, and whether it may be signalled (dodequeue of RFC 8289, section 5.6).
func (q *Queue[T]) take(i int32, now int64) (n int32, p *Params, above bool) {
	n, p = q.unlink(i), &q.cfg.Params
	if n == none {
		return none, p, false
	}
	if q.cfg.Small != nil && int(q.nodes[n].bytes) <= q.cfg.SmallSize {
		p = q.cfg.Small
	}
	return n, p, q.flows[i].codel.above(p, now, now-q.nodes[n].pushed, q.backlog[i])
}

// signal calls Config.Signal, and releases the element if it is empty then.
func (q *Queue[T]) signal(n int32) (empty bool) {
	if !q.cfg.Signal(&q.nodes[n].value) {
		return false
	}
	q.release(n)
	return true
}

// unlink removes the first node of flow i, and returns it to be released; none if the flow is empty.
func (q *Queue[T]) unlink(i int32) int32 {
	f := &q.flows[i]
	at := f.first
	if at == none {
		return none
	}
	n := &q.nodes[at]
	f.first = n.next
	if f.first == none {
		f.codel.firstAbove = 0 // also if PopFattest has emptied it
	}
	q.backlog[i] -= int(n.bytes)
	q.bytes -= int(n.bytes)
	q.elements--
	return at
}

// release returns the value of a node, and frees the node.
func (q *Queue[T]) release(at int32) T {
	n := &q.nodes[at]
	value := n.value
	var zero T
	n.value = zero // free nodes keep no buffers alive
	n.next, q.free = q.free, at
	return value
}

// addTail adds flow i to the end of l.
func (q *Queue[T]) addTail(l *list, i int32) {
	q.flows[i].next = none
	if l.first == none {
		l.first = i
	} else {
		q.flows[l.last].next = i
	}
	l.last = i
}

// removeHead removes the first flow of l and returns it.
func (q *Queue[T]) removeHead(l *list) int32 {
	i := l.first
	l.first = q.flows[i].next
	return i
}

// moveToOld moves the first flow of l to the end of the old ones.
func (q *Queue[T]) moveToOld(l *list) { q.addTail(&q.old, q.removeHead(l)) }
