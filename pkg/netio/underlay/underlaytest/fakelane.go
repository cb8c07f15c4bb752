// SPDX-License-Identifier: Apache-2.0

package underlaytest

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// fakeElement is one element in transit.
type fakeElement struct {
	from    underlay.Endpoint
	payload []byte
	segSize int
	ecn     packet.ECN
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
	free   [][]byte      // payloads to reuse, the last used first
	held   []fakeElement // delayed by the filter
	lost   atomic.Uint64 // because the ring was full, or closed
	closed bool
}

func newFakeLane(port *Fake, index int) *fakeLane {
	l := &fakeLane{port: port, index: index, ring: make([]fakeElement, fakeDepth)}
	l.filled.L = &l.mu
	return l
}

// Recv implements Lane.
func (l *fakeLane) Recv(rx []underlay.Datagrams) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.count == 0 && !l.closed {
		l.filled.Wait()
	}
	if l.closed {
		return 0, net.ErrClosed
	}
	return l.drain(rx), nil
}

// TryRecv implements Lane.
func (l *fakeLane) TryRecv(rx []underlay.Datagrams) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0
	}
	return l.drain(rx)
}

// drain moves as many elements as are queued and fit into rx. The caller holds mu.
func (l *fakeLane) drain(rx []underlay.Datagrams) int {
	n := min(len(rx), l.count)
	for i := range n {
		e := &l.ring[l.head]
		e.copyTo(&rx[i])
		l.free = append(l.free, e.payload)
		e.payload = nil
		l.head = (l.head + 1) % len(l.ring)
	}
	l.count -= n
	return n
}

func (e *fakeElement) copyTo(d *underlay.Datagrams) {
	d.N = copy(d.Buf, e.payload)
	d.SegSize = min(e.segSize, d.N)
	d.From = e.from
	d.ECN = e.ecn
	d.Truncated = d.N < len(e.payload)
}

// Send implements Lane.
func (l *fakeLane) Send(runs []underlay.Run) (failed int) {
	for i := range runs {
		runs[i].Err = l.port.send(&runs[i], l.index)
		if runs[i].Err != nil {
			failed++
		}
	}
	return failed
}

// SendFD implements Lane. A fake has no send buffer.
func (l *fakeLane) SendFD(*underlay.Run) int { return -1 }

// BeginWait implements Lane.
func (l *fakeLane) BeginWait() bool { return true }

// EndWait implements Lane.
func (l *fakeLane) EndWait() {}

// close ends Recv. Elements that wait are lost unless another lane is to take them over.
func (l *fakeLane) close(kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if !kept {
		l.lost.Add(uint64(l.count))
		l.count = 0
	}
	l.filled.Broadcast()
}

// takeOver moves what waits in a closed lane to this one.
func (l *fakeLane) takeOver(kept *fakeLane) {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	for ; kept.count > 0; kept.count-- {
		e := kept.ring[kept.head]
		l.take(e, e.payload)
		kept.head = (kept.head + 1) % len(kept.ring)
	}
}

// deliver queues a run for this lane. Without a filter it stays whole; with one it is split into datagrams.
func (l *fakeLane) deliver(filter Filter, from *underlay.Endpoint, r *underlay.Run) {
	if filter == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		segSize := r.SegSize
		if r.Segments == 1 {
			segSize = 0
		}
		l.push(fakeElement{from: *from, segSize: segSize, ecn: r.ECN}, r.Parts)
		return
	}
	to := netip.AddrPortFrom(from.Src, r.To.Dst.Port())
	for datagram := range r.Datagrams {
		copied := append([]byte(nil), datagram...)
		l.applyVerdict(filter(from.Dst, to, copied), fakeElement{from: *from, payload: copied, ecn: r.ECN})
	}
}

// take queues a single datagram.
func (l *fakeLane) take(e fakeElement, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.push(e, [][]byte{payload})
}

// applyVerdict applies a filter's verdict to a single datagram.
func (l *fakeLane) applyVerdict(v Verdict, e fakeElement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch v {
	case Drop:
		return
	case Delay:
		l.held = append(l.held, e)
		return
	case Duplicate:
		l.push(e, [][]byte{e.payload})
	}
	l.push(e, [][]byte{e.payload})
	for _, held := range l.held {
		l.push(held, [][]byte{held.payload})
	}
	l.held = l.held[:0]
}

// push appends one element with a copy of parts as its payload, or drops it when the ring is full. A segSize of 0 means
// a single datagram. The caller holds mu.
func (l *fakeLane) push(head fakeElement, parts [][]byte) {
	if l.closed || l.count == len(l.ring) {
		l.lost.Add(1)
		return
	}
	e := &l.ring[(l.head+l.count)%len(l.ring)]
	*e = head
	e.payload = nil
	if last := len(l.free) - 1; last >= 0 {
		e.payload, l.free = l.free[last][:0], l.free[:last]
	}
	for _, part := range parts {
		e.payload = append(e.payload, part...)
	}
	if e.segSize == 0 || e.segSize > len(e.payload) {
		e.segSize = len(e.payload)
	}
	l.count++
	l.filled.Signal()
}
