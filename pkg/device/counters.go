// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// socketDrops adds up what was discarded in front of all ports that there were. Its methods may be called by any goroutine.
type socketDrops struct {
	mu      sync.Mutex
	before  []uint64 // of ports that are closed, by lane
	sources uint64   // of those, in front of their sources
	port    underlay.Counter
}

// applyLinkEvent goes on with another port, nil for none, when the one before is closed. One that does not count adds nothing.
func (s *socketDrops) follow(port underlay.Port, lanes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.sources = s.sum(lanes)
	s.port, _ = port.(underlay.Counter)
}

// sum returns the drops in front of each of so many lanes, and in front of all sources. The caller holds mu.
func (s *socketDrops) sum(lanes int) (each []uint64, sources uint64) {
	each = make([]uint64, lanes)
	if s.port != nil {
		sources = s.port.SocketDrops(each)
	}
	for i := range min(lanes, len(s.before)) {
		each[i] += s.before[i]
	}
	return each, sources + s.sources
}

// addTo files them under their lanes, and those of sources, which have none, under Slow.
func (s *socketDrops) addTo(stats *engine.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	each, sources := s.sum(len(stats.Lanes))
	reason := drop.RXSocket.String()
	for i, n := range each {
		if n > 0 {
			stats.Lanes[i].Drops[reason] += n
		}
	}
	if sources > 0 {
		stats.Slow.Drops[reason] += sources
	}
}

// trafficStats is what the lanes have carried and dropped, and what was dropped in front of them.
func (d *Device) trafficStats() engine.Stats {
	s := d.engine.Stats()
	d.socketDrops.addTo(&s)
	return s
}
