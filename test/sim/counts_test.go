// SPDX-License-Identifier: Apache-2.0

package sim

import "strings"

// checkCounts checks that each packet and message of a host was passed on or is counted under one reason. It is called when nothing is
// in transit any more.
func (s *sim) checkCounts(h *host) {
	if s.schedule.Spread {
		return // hellos and probes look like inner packets on the wire
	}
	var c wireCounts
	s.network.change(func() { c = s.network.watch.counts[h.n] })
	drops := h.allDrops()
	s.checkSent(h, drops, &c)
	s.checkReceived(h, drops, &c)
}

// sum is the number of drops for reasons of one direction.
func sum(drops map[string]uint64, tx bool) (n uint64) {
	for reason, k := range drops {
		if strings.HasPrefix(reason, "tx_") == tx {
			n += k
		}
	}
	return n
}

// checkSent compares the packets that entered the tunnel with those that left and those that were dropped.
func (s *sim) checkSent(h *host, drops map[string]uint64, c *wireCounts) {
	put, dropped := s.model.put[h.n], sum(drops, true)
	if out := c.txData + dropped; out > put || out < put && !h.died {
		s.report.add("counts", "host %d: %d packets to send, but %d sent and %d counted as dropped: %v", h.n, put, c.txData, dropped, drops)
	}
}

// checkReceived compares the messages that arrived with the packets that were delivered and the messages that were dropped. The number of
// handshake messages and keepalives that were accepted is not known.
func (s *sim) checkReceived(h *host, drops map[string]uint64, c *wireCounts) {
	got, dropped := s.model.got[h.n], sum(drops, false)
	if out := got + dropped; out < c.rxData || out > c.rxTotal {
		s.report.add("counts", "host %d: %d messages arrived, %d with data, but %d packets were delivered and %d counted as dropped: %v",
			h.n, c.rxTotal, c.rxData, got, dropped, drops)
	}
}
