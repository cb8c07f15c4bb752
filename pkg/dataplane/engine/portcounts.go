// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// portCounts counts the authentic messages of one peer by the source port that they came from (Peer.Gathered). It takes memory with the first
// message from such a port.
type portCounts struct{ table atomic.Pointer[portTable] }

// portTable has a count for each port, in a place that the port determines, or the next one. Neighbouring ports, which arrive at different lanes,
// have cache lines of their own.
type portTable [spread.MaxPorts]struct {
	port, messages atomic.Uint32
	_              [56]byte
}

// count adds n messages from a port.
func (c *portCounts) count(port uint16, n int) {
	t := c.table.Load()
	if t == nil {
		c.table.CompareAndSwap(nil, new(portTable))
		t = c.table.Load()
	}
	for i := range uint16(len(t)) {
		x := &t[(port+i)%uint16(len(t))]
		if x.port.Load() == uint32(port) || x.port.CompareAndSwap(0, uint32(port)) || x.port.Load() == uint32(port) {
			x.messages.Add(uint32(n))
			return
		}
	}
	t.forget() // the peer uses other ports than before
}

// forget begins to count anew. A lane that counts meanwhile may leave a few messages of a port that was forgotten.
func (t *portTable) forget() {
	for i := range t {
		t[i].messages.Store(0)
		t[i].port.Store(0)
	}
}

// PortCounts appends the number of messages from each of the peer's source ports, modulo 2^32. It returns those that have arrived since the
// peer began to use its present ports.
func (p *Peer) PortCounts(counts []wire.PortCount) []wire.PortCount {
	t := p.ports.table.Load()
	if t == nil {
		return counts
	}
	for i := range t {
		if port := t[i].port.Load(); port != 0 {
			counts = append(counts, wire.PortCount{Port: uint16(port), Messages: t[i].messages.Load()})
		}
	}
	return counts
}
