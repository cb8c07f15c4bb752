// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Drops sums the drops of the kernel's socket queues over all ports that the device has had. Any goroutine may call
// its methods.
type Drops struct {
	mu      sync.Mutex
	closed  []underlay.SocketDrops // of closed ports, by lane
	sources underlay.SocketDrops   // of closed ports at their sources
	port    underlay.Counter
}

// SetPort continues with another port, nil for none. Call it after the old port was closed. A port without counters adds
// nothing.
func (s *Drops) SetPort(port underlay.Port, lanes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.sources = s.sum(lanes)
	s.port, _ = port.(underlay.Counter)
}

// sum returns the drops of each lane, and the drops of all sources. The caller holds mu.
func (s *Drops) sum(lanes int) (each []underlay.SocketDrops, sources underlay.SocketDrops) {
	each = make([]underlay.SocketDrops, lanes)
	if s.port != nil {
		sources = s.port.SocketDrops(each)
	}
	for i := range min(lanes, len(s.closed)) {
		each[i].Add(s.closed[i])
	}
	sources.Add(s.sources)
	return each, sources
}

// AddTo adds the drops of each lane to that lane, and the drops of the sources, which have no lane,
// to Slow.
func (s *Drops) AddTo(stats *engine.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	each, sources := s.sum(len(stats.Lanes))
	for i := range each {
		addSocketDrops(&stats.Lanes[i], each[i])
	}
	addSocketDrops(&stats.Slow, sources)
}

func addSocketDrops(to *engine.LaneStats, n underlay.SocketDrops) {
	to.SocketDrops += n.Buffers
	if n.Datagrams > 0 {
		to.Drops[drop.RXSocket.String()] += n.Datagrams
	}
	if n.Unsent > 0 {
		to.Drops[drop.TXSendError.String()] += n.Unsent
	}
}
