// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net"
	"net/netip"
	"sync"
)

// fakeElement is one element on its way.
type fakeElement struct {
	from    Endpoint
	payload []byte
	segSize int
}

// fakeLane is a bounded ring of elements that wait for Recv.
type fakeLane struct {
	port   *Fake
	index  int
	mu     sync.Mutex
	filled sync.Cond
	ring   []fakeElement
	head   int
	count  int
	free   [][]byte      // payloads to use again, the last used first
	held   []fakeElement // delayed by the filter
	closed bool
}

func newFakeLane(port *Fake, index int) *fakeLane {
	l := &fakeLane{port: port, index: index, ring: make([]fakeElement, fakeDepth)}
	l.filled.L = &l.mu
	return l
}

// Recv implements Lane.
func (l *fakeLane) Recv(rx []Datagrams) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.count == 0 && !l.closed {
		l.filled.Wait()
	}
	if l.closed {
		return 0, net.ErrClosed
	}
	n := min(len(rx), l.count)
	for i := range n {
		e := &l.ring[l.head]
		e.copyTo(&rx[i])
		l.free = append(l.free, e.payload)
		e.payload = nil
		l.head = (l.head + 1) % len(l.ring)
	}
	l.count -= n
	return n, nil
}

func (e *fakeElement) copyTo(d *Datagrams) {
	d.N = copy(d.Buf, e.payload)
	d.SegSize = min(e.segSize, d.N)
	d.From = e.from
	d.Truncated = d.N < len(e.payload)
}

// Send implements Lane.
func (l *fakeLane) Send(runs []Run) (failed int) {
	for i := range runs {
		runs[i].Err = l.port.send(&runs[i], l.index)
		if runs[i].Err != nil {
			failed++
		}
	}
	return failed
}

func (l *fakeLane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.filled.Broadcast()
}

// deliver queues a run that was sent here, whole or, under a filter, datagram by datagram.
func (l *fakeLane) deliver(filter Filter, from *Endpoint, r *Run) {
	if filter == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		segSize := r.SegSize
		if r.Segments == 1 {
			segSize = 0
		}
		l.push(from, r.Parts, segSize)
		return
	}
	to := netip.AddrPortFrom(from.Src, r.To.Dst.Port())
	for datagram := range r.Datagrams {
		copied := append([]byte(nil), datagram...)
		l.judge(filter(from.Dst, to, copied), from, copied)
	}
}

// judge carries out a filter's verdict.
func (l *fakeLane) judge(v Verdict, from *Endpoint, datagram []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	parts := [][]byte{datagram}
	switch v {
	case Drop:
		return
	case Delay:
		l.held = append(l.held, fakeElement{from: *from, payload: datagram})
		return
	case Duplicate:
		l.push(from, parts, len(datagram))
	}
	l.push(from, parts, len(datagram))
	for i := range l.held {
		l.push(&l.held[i].from, [][]byte{l.held[i].payload}, len(l.held[i].payload))
	}
	l.held = l.held[:0]
}

// push appends one element, or loses it when the ring is full; segSize 0 is a single datagram. Call it with mu held.
func (l *fakeLane) push(from *Endpoint, parts [][]byte, segSize int) {
	if l.closed || l.count == len(l.ring) {
		return
	}
	e := &l.ring[(l.head+l.count)%len(l.ring)]
	e.from = *from
	if last := len(l.free) - 1; last >= 0 {
		e.payload, l.free = l.free[last][:0], l.free[:last]
	}
	for _, part := range parts {
		e.payload = append(e.payload, part...)
	}
	e.segSize = segSize
	if segSize == 0 || segSize > len(e.payload) {
		e.segSize = len(e.payload)
	}
	l.count++
	l.filled.Signal()
}
