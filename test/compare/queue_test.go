// SPDX-License-Identifier: Apache-2.0

package compare

import "sync"

// parcel is one element on its way: a packet or train at a TUN, or datagrams of segSize bytes at the network.
type parcel struct {
	data    []byte
	segSize int
	own     []byte // memory of the queue's, for what has to be copied in; nil between uses
}

// copyIn makes a parcel of what lies in parts.
func (p *parcel) copyIn(parts [][]byte, segSize int) {
	p.own = p.own[:0]
	for _, part := range parts {
		p.own = append(p.own, part...)
	}
	p.data, p.segSize = p.own, segSize
}

// queue is a bounded ring of parcels, from any number of goroutines to one. It blocks when it is full or empty. The lock
// is taken twice per call, and never while anything is copied.
type queue struct {
	limit     int // bytes that are taken at once, and beyond which put blocks; 0 for none
	producers sync.Mutex
	mu        sync.Mutex
	changed   sync.Cond
	slots     []parcel
	head      int
	count     int
	bytes     int
	free      [][]byte // memory that was used last is used first, as it is still in the cache
	closed    bool
}

func newQueue(depth, limit int) *queue {
	q := &queue{limit: limit, slots: make([]parcel, depth)}
	q.changed.L = &q.mu
	return q
}

// put appends n parcels, each filled in by fill. It returns false once the queue is closed.
func (q *queue) put(n int, fill func(i int, p *parcel)) bool {
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

// take hands at most n parcels to use until that returns false, and returns how many; 0 once the queue is closed.
func (q *queue) take(n int, use func(i int, p *parcel) (more bool)) (used int) {
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

// room waits for free slots, and returns the first and their number, at most n; 0 once the queue is closed.
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
		q.slots[(at+i)%len(q.slots)].own, q.free = q.free[last], q.free[:last]
	}
	return at, room
}

// ready waits for parcels, and returns the first and their number; 0 once the queue is closed.
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
		if p.own != nil {
			q.free = append(q.free, p.own)
		}
		*p = parcel{}
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
