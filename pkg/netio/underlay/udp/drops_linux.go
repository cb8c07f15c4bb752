// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// dropCounter extends the kernel's 32-bit counter to 64 bits.
type dropCounter struct {
	last  uint32
	total uint64
}

// advance adds a reading, at most 1<<32-1 above the last one.
func (c *dropCounter) advance(read uint32) {
	c.total += uint64(read - c.last)
	c.last = read
}

// dropCounters are the counters of a Port's sockets, in the order of Port.sockets: lanes, then sources.
type dropCounters struct {
	mu       sync.Mutex
	counters []dropCounter
}

// read reads the counter of each socket. A socket that cannot be read keeps its count.
func (c *dropCounters) read(sockets func(yield func(fd int) bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := 0
	for fd := range sockets {
		if i == len(c.counters) {
			c.counters = append(c.counters, dropCounter{})
		}
		if n, errno := readDrops(fd); errno == 0 {
			c.counters[i].advance(n)
		}
		i++
	}
}

func (c *dropCounters) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counters = nil
}

// sum returns the totals of the given number of lanes, and the sum of all other sockets.
func (c *dropCounters) sum(count int, lanes []uint64) (others uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(lanes)
	for i := range c.counters {
		switch {
		case i >= count:
			others += c.counters[i].total
		case i < len(lanes):
			lanes[i] = c.counters[i].total
		}
	}
	return others
}

var _ underlay.Counter = (*Port)(nil)

// SocketDrops implements underlay.Counter. Inherited sockets (Config.Sockets) count from their creation.
func (p *Port) SocketDrops(lanes []uint64) (sources uint64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.socketsClosed {
		p.drops.read(p.sockets)
	}
	return p.drops.sum(len(p.lanes), lanes)
}

// readLastDrops takes the last reading, before the sockets are closed. Kept sockets are counted by the next Port. The
// caller holds mu for writing.
func (p *Port) readLastDrops(kept bool) {
	p.socketsClosed = true
	if kept {
		p.drops.reset()
		return
	}
	p.drops.read(p.sockets)
}
