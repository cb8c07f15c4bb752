// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/sockets"
)

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

// traffic returns the lanes' counters, with the drops of the sockets in front of them.
func (c *counters) traffic() engine.Stats {
	s := c.dev.engine.Stats()
	c.socketDrops.AddTo(&s)
	return s
}

// addTUNDrops adds the drops of the kernel in front of the lanes, from the beginning of this device
// or of its predecessor.
func (c *counters) addTUNDrops(s *engine.Stats) {
	if n, before := c.tunQueueDrops(), c.tunDropsBefore.Load(); n > before {
		s.Drops[drop.TXTUNQueue.String()] += n - before
	}
}

// tunQueueDrops returns the kernel's counter, which the interface keeps.
func (c *counters) tunQueueDrops() uint64 {
	if c, ok := c.dev.cfg.TUN.(tun.DropCounter); ok {
		return c.QueueDrops()
	}
	return 0
}

// icmpCounters counts the ICMP errors that report a path MTU.
type icmpCounters struct{ believed, ignored atomic.Uint64 }

func (c *icmpCounters) snapshot() config.ICMPErrorCounts {
	return config.ICMPErrorCounts{Believed: c.believed.Load(), Ignored: c.ignored.Load()}
}

// quantumCounters count for all present and removed peers of a device.
type quantumCounters struct {
	results    [postquantum.Results]atomic.Uint64
	fallbacks  atomic.Uint64 // handshakes of ours in which the peer did not have the key that was named
	downgrades atomic.Uint64
}

// report returns the counts.
func (c *quantumCounters) report() (r config.PostQuantumReport) {
	r.Fallbacks, r.Downgrades, r.Exchanges = c.fallbacks.Load(), c.downgrades.Load(), map[string]uint64{}
	for result := postquantum.Completed; result < postquantum.Results; result++ {
		r.Exchanges[result.String()] = c.results[result].Load()
	}
	return r
}

// counters count for all present and removed peers.
type counters struct {
	dev            *Device
	handshakes     handshakeCounters
	socketDrops    sockets.Drops
	quantum        quantumCounters
	tunDropsBefore atomic.Uint64 // of a persistent interface, while no daemon served it
}
