// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// dropCounter makes one long count of the kernel's, which begins anew after 1<<32.
type dropCounter struct {
	read  uint32
	total uint64
}

// advance takes a reading, at most 1<<32-1 after the last one.
func (o *dropCounter) advance(read uint32) {
	o.total += uint64(read - o.read)
	o.read = read
}

// dropCounters are those of a Port's sockets, in the order of Port.sockets: lanes, then sources.
type dropCounters struct {
	mu   sync.Mutex
	each []dropCounter
}

// read takes a reading of each socket. One that cannot be read stays.
func (o *dropCounters) read(sockets func(yield func(fd int) bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := 0
	for fd := range sockets {
		if i == len(o.each) {
			o.each = append(o.each, dropCounter{})
		}
		if n, errno := readDrops(fd); errno == 0 {
			o.each[i].advance(n)
		}
		i++
	}
}

func (o *dropCounters) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.each = nil
}

// sum returns the totals of so many lanes, and of all other sockets together.
func (o *dropCounters) sum(count int, lanes []uint64) (others uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(lanes)
	for i := range o.each {
		switch {
		case i >= count:
			others += o.each[i].total
		case i < len(lanes):
			lanes[i] = o.each[i].total
		}
	}
	return others
}

var _ underlay.Counter = (*Port)(nil)

// SocketDrops implements underlay.Counter. Those of sockets that were gone on with (Config.Sockets) count from when they were made.
func (p *Port) SocketDrops(lanes []uint64) (sources uint64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.gone {
		p.drops.read(p.sockets)
	}
	return p.drops.sum(len(p.lanes), lanes)
}

// lastDrops takes the last reading, before the sockets are closed. What is kept is its next user's. The caller holds mu for
// writing.
func (p *Port) lastDrops(kept bool) {
	p.gone = true
	if kept {
		p.drops.forget()
		return
	}
	p.drops.read(p.sockets)
}
