// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// portCounts counts the authentic messages of one peer by the source port that they came from (Peer.Gathered). Each port has a place that it
// determines, or the next one. Neighbouring ports, which arrive at different lanes, have cache lines of their own.
type portCounts [spread.MaxPorts]struct {
	port, messages atomic.Uint32
	_              [56]byte
}

// CountPort adds n messages from a port. The first takes memory.
func (p *Peer) CountPort(port uint16, n int) {
	t := p.ports.Load()
	if t == nil {
		p.ports.CompareAndSwap(nil, new(portCounts))
		t = p.ports.Load()
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
func (t *portCounts) forget() {
	for i := range t {
		t[i].messages.Store(0)
		t[i].port.Store(0)
	}
}

// PortCounts appends the number of messages from each of the peer's source ports, modulo 2^32. It
// counts messages that have arrived since the peer began to use its present ports.
func (p *Peer) PortCounts(counts []wire.PortCount) []wire.PortCount {
	t := p.ports.Load()
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
