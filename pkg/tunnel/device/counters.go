// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// trafficStats returns the lanes' counters, with the drops of the sockets in front of them.
func (d *Device) trafficStats() engine.Stats {
	s := d.engine.Stats()
	d.socketDrops.addTo(&s)
	return s
}

// addTUNDrops adds what the kernel dropped in front of the lanes since this device, or the one whose counters it has, began.
func (d *Device) addTUNDrops(s *engine.Stats) {
	if n, before := d.tunQueueDrops(), d.tunDropsBefore.Load(); n > before {
		s.Drops[drop.TXTUNQueue.String()] += n - before
	}
}

// tunQueueDrops returns the kernel's counter, which the interface keeps.
func (d *Device) tunQueueDrops() uint64 {
	if c, ok := d.cfg.TUN.(tun.DropCounter); ok {
		return c.QueueDrops()
	}
	return 0
}

// socketDrops sums the drops of the kernel's socket queues over all ports that the device has had. Any goroutine may call
// its methods.
type socketDrops struct {
	mu      sync.Mutex
	closed  []underlay.SocketDrops // of closed ports, by lane
	sources underlay.SocketDrops   // of closed ports at their sources
	port    underlay.Counter
}

// setPort continues with another port, nil for none. Call it after the old port was closed. A port without counters adds
// nothing.
func (s *socketDrops) setPort(port underlay.Port, lanes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.sources = s.sum(lanes)
	s.port, _ = port.(underlay.Counter)
}

// sum returns the drops of each lane, and those of all sources. The caller holds mu.
func (s *socketDrops) sum(lanes int) (each []underlay.SocketDrops, sources underlay.SocketDrops) {
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

// addTo adds the drops of each lane to that lane, and those of the sources, which have no lane, to Slow.
func (s *socketDrops) addTo(stats *engine.Stats) {
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

// HandshakeStats counts the handshakes of all peers, by our role. Rejected messages count as drops, by reason.
type HandshakeStats struct {
	Initiated uint64 `json:"initiated"` // initiations sent, retries included
	Completed uint64 `json:"completed"` // initiations that were answered
	GaveUp    uint64 `json:"gave_up"`   // attempts of 90 s without an answer
	Answered  uint64 `json:"answered"`  // responses sent
	Confirmed uint64 `json:"confirmed"` // responses whose session the initiator has used
}

// handshakeCounters is the atomic form of HandshakeStats.
type handshakeCounters struct{ initiated, completed, gaveUp, answered, confirmed atomic.Uint64 }

func (c *handshakeCounters) snapshot() HandshakeStats {
	return HandshakeStats{
		Initiated: c.initiated.Load(), Completed: c.completed.Load(), GaveUp: c.gaveUp.Load(),
		Answered: c.answered.Load(), Confirmed: c.confirmed.Load(),
	}
}

// add adds the counts of the device whose state this one resumes.
func (c *handshakeCounters) add(before HandshakeStats) {
	c.initiated.Add(before.Initiated)
	c.completed.Add(before.Completed)
	c.gaveUp.Add(before.GaveUp)
	c.answered.Add(before.Answered)
	c.confirmed.Add(before.Confirmed)
}
