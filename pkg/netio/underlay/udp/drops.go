// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"math"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// dropCounter extends the kernel's 32-bit counter to 64 bits, and estimates the datagrams. All
// kernels count a UDP GRO buffer as one: __udp_enqueue_schedule_skb and udp_queue_rcv_one_skb add
// one to sk_drops. TCP's sk_drops_skbadd adds the segments.
type dropCounter struct {
	last  uint32
	at    receiveCount // at the last reading
	total underlay.SocketDrops
}

// advance adds a reading, at most 1<<32-1 above the last one. now is the total received until
// then.
func (c *dropCounter) advance(read uint32, now receiveCount) {
	n := uint64(read - c.last)
	recent := receiveCount{now.elements - c.at.elements, now.messages - c.at.messages}
	if recent.elements == 0 {
		recent = now
	}
	c.total.Add(underlay.SocketDrops{Buffers: n, Datagrams: recent.messagesIn(n)})
	c.last, c.at = read, now
}

// receiveCount counts received elements, and the messages in them.
type receiveCount struct{ elements, messages uint64 }

// messagesIn estimates the messages in n elements.
func (r receiveCount) messagesIn(n uint64) uint64 {
	if r.elements == 0 {
		return n
	}
	return max(n, uint64(math.Round(float64(n)*float64(r.messages)/float64(r.elements))))
}

// dropCounters are the counters of a Port's sockets, in the order of Port.sockets: lanes, then
// sources, then send groups. A new source moves the counters of the groups, which are zero:
// nothing arrives there.
type dropCounters struct {
	mu       sync.Mutex
	counters []dropCounter
}

// read reads the counter of each socket. A socket that cannot be read keeps its count.
func (c *dropCounters) read(sockets func(yield func(fd int) bool), received func(socket int) receiveCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := 0
	for fd := range sockets {
		if i == len(c.counters) {
			c.counters = append(c.counters, dropCounter{})
		}
		if n, errno := readDrops(fd); errno == 0 {
			c.counters[i].advance(n, received(i))
		}
		i++
	}
}

// handOver leaves the kernel's counts to the next owner of the sockets, who cannot know the excess of the estimates.
func (c *dropCounters) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.counters {
		t := &c.counters[i].total
		*t = underlay.SocketDrops{Datagrams: t.Datagrams - t.Buffers}
	}
}

// sum returns the totals of the given number of lanes, and the sum of all other sockets.
func (c *dropCounters) sum(count int, lanes []underlay.SocketDrops) (others underlay.SocketDrops) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(lanes)
	for i := range c.counters {
		switch {
		case i >= count:
			others.Add(c.counters[i].total)
		case i < len(lanes):
			lanes[i] = c.counters[i].total
		}
	}
	return others
}

var _ underlay.Counter = (*Port)(nil)

// SocketDrops implements underlay.Counter. Inherited sockets (Config.Sockets) count from their creation.
func (p *Port) SocketDrops(lanes []underlay.SocketDrops) (sources underlay.SocketDrops) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.socketsClosed {
		p.drops.read(p.sockets, p.received)
	}
	return p.drops.sum(len(p.lanes), lanes)
}

// readLastDrops takes the last reading, before the sockets are closed. Kept sockets are counted by the next Port. The
// caller holds mu for writing.
func (p *Port) readLastDrops(kept bool) {
	p.socketsClosed = true
	p.drops.read(p.sockets, p.received)
	if kept {
		p.drops.handOver()
	}
}

// received returns what has been received from a socket, in the order of sockets: from a lane, or from all sources.
func (p *Port) received(socket int) receiveCount {
	b := p.secondary.rx
	if socket < len(p.lanes) {
		b = p.lanes[socket].rx
	}
	return receiveCount{b.elements.Load(), b.messages.Load()}
}
