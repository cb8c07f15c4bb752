// SPDX-License-Identifier: Apache-2.0

package sim

import "strings"

// checkCounts checks that each packet and message of a host was passed on or is counted under one reason. It is called when nothing waits any
// more.
func (s *sim) checkCounts(h *host) {
	if n := s.held(h); n != 0 {
		put, _ := s.model.packetCounts(h.n)
		s.report.add("counts", "host %d: of %d packets to send, %d neither left nor are counted as dropped: %v", h.n, put, n, h.dropCounts())
	}
	s.checkReceived(h)
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

// wireCounts returns what was seen on the wire of a host.
func (s *sim) wireCounts(h *host) (c wireCounts) {
	s.network.change(func() { c = s.network.watch.counts[h.n] })
	return c
}

// held returns the number of packets to send that a host holds: they have entered the tunnel, and neither left nor were dropped. On the wire,
// control messages look like packets.
func (s *sim) held(h *host) int {
	t, c := h.tally(), s.wireCounts(h)
	put, _ := s.model.packetCounts(h.n)
	return int(put+t.txControl) - int(c.txData+t.txDropped)
}

// checkReceived compares the messages that arrived with the packets that were delivered and the messages that were dropped. The number of
// handshake messages and keepalives that were accepted is not known.
func (s *sim) checkReceived(h *host) {
	t, c := h.tally(), s.wireCounts(h)
	_, got := s.model.packetCounts(h.n)
	if out := got + t.rxControl + t.rxDropped; out < c.rxData || out > c.rxTotal {
		s.report.add("counts", "host %d: %d messages arrived, %d with data, but %d packets were delivered, %d control messages accepted and %d counted as dropped: %v",
			h.n, c.rxTotal, c.rxData, got, t.rxControl, t.rxDropped, h.dropCounts())
	}
}

// maxStaged bounds the memory of all packets that wait for sessions (docs/operations.md). The simulated network takes all datagrams, so no packet to
// send waits for anything else.
const maxStaged = 32 << 20

// checkHeld checks, while all goroutines wait, that no more packets of a host left or are counted than it had to send, and that those it holds take no
// more memory than it allows for all peers together.
func (s *sim) checkHeld(h *host) {
	if !h.alive() {
		return
	}
	n := s.held(h)
	if n < 0 {
		put, _ := s.model.packetCounts(h.n)
		s.report.add("counts", "host %d: of %d packets to send, %d too many left or are counted as dropped: %v", h.n, put, -n, h.dropCounts())
	}
	if bytes := s.model.least(h.n, n); bytes > maxStaged {
		s.report.add("memory", "host %d holds packets of at least %d bytes, and may hold %d", h.n, bytes, maxStaged)
	}
	if !s.schedule.Spray { // a sprayed flow's messages may wait for their order
		s.checkReceived(h)
	}
}
