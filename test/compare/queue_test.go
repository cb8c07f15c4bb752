// SPDX-License-Identifier: Apache-2.0

package compare

import "sync"

// element is a packet or train at the TUN, or datagrams of segSize bytes on the network.
type element struct {
	data    []byte
	segSize int
	copied  []byte // memory of the queue for copied data; nil while unused
}

// copyFrom sets the element to a copy of the parts.
func (p *element) copyFrom(parts [][]byte, segSize int) {
	p.copied = p.copied[:0]
	for _, part := range parts {
		p.copied = append(p.copied, part...)
	}
	p.data, p.segSize = p.copied, segSize
}

// queue is a bounded ring of elements with any number of producers and one consumer. It blocks when it is full or empty. Each call
// takes the lock twice, and never holds it while it copies.
type queue struct {
	limit     int // largest number of bytes per take, and bytes at which put blocks; 0 means unlimited
	producers sync.Mutex
	mu        sync.Mutex
	changed   sync.Cond
	slots     []element
	head      int
	count     int
	bytes     int
	free      [][]byte // a stack, so that the memory used next is still in the cache
	closed    bool
}

func newQueue(depth, limit int) *queue {
	q := &queue{limit: limit, slots: make([]element, depth)}
	q.changed.L = &q.mu
	return q
}

// put appends n elements, which fill sets. It returns false if the queue is closed.
func (q *queue) put(n int, fill func(i int, p *element)) bool {
	q.producers.Lock()
	defer q.producers.Unlock()
	for i := 0; i < n; {
		at, room := q.room(n - i)
		if room == 0 {
			return false
		}
		bytes := 0
		for k := range room {
			p := &q.slots[(at+k)%len(q.slots)]
			fill(i+k, p)
			bytes += len(p.data)
		}
		q.add(room, bytes)
		i += room
	}
	return true
}

// take calls use with up to n elements, until use returns false. It returns the number of elements used, 0 if the queue is closed.
func (q *queue) take(n int, use func(i int, p *element) (more bool)) (used int) {
	at, ready := q.ready()
	bytes := 0
	for used < min(n, ready) {
		p := &q.slots[(at+used)%len(q.slots)]
		more := use(used, p)
		used++
		bytes += len(p.data)
		if !more || q.limit > 0 && bytes >= q.limit {
			break
		}
	}
	q.remove(used, bytes)
	return used
}

// room waits for free slots. It returns the first one and their number, at most n. The number is 0 if the queue is closed.
func (q *queue) room(n int) (at, room int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for (q.count == len(q.slots) || q.limit > 0 && q.bytes >= q.limit) && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return 0, 0
	}
	at, room = q.head+q.count, min(len(q.slots)-q.count, n)
	for i := range min(room, len(q.free)) {
		last := len(q.free) - 1
		q.slots[(at+i)%len(q.slots)].copied, q.free = q.free[last], q.free[:last]
	}
	return at, room
}

// ready waits for elements. It returns the first one and their number, which is 0 if the queue is closed.
func (q *queue) ready() (at, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.count == 0 && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return 0, 0
	}
	return q.head, q.count
}

func (q *queue) add(n, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count += n
	q.bytes += bytes
	q.changed.Broadcast()
}

func (q *queue) remove(n, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		p := &q.slots[q.head]
		if p.copied != nil {
			q.free = append(q.free, p.copied)
		}
		*p = element{}
		q.head = (q.head + 1) % len(q.slots)
	}
	q.count -= n
	q.bytes -= bytes
	q.changed.Broadcast()
}

func (q *queue) setClosed(closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = closed
	q.changed.Broadcast()
}
