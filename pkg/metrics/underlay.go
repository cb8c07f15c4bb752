// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/config"
)

// underlay shows by what way data messages go, and what became of them in XDP. Where that is not in use there is nothing of
// it: its counters begin with the port.
func (s *scrape) underlay() {
	w := &s.Stats.Way
	s.emit(underlayInfo, 1, w.Mode.String(), w.Way.String(), label(w.Device), w.How)
	s.emit(xdpLanes, float64(w.Lanes))
	if r := w.ReceiveCPUs; r != nil {
		s.emit(receiveCPUs, float64(len(r.CPUs)), label(r.Device))
	}
	for event, n := range w.Events {
		s.count(xdpEvents, n, event)
	}
	for reason, n := range w.Drops {
		s.count(xdpDropped, n, reason)
	}
	for i := range w.XDP {
		l, name := &w.XDP[i], strconv.Itoa(i)
		s.count(xdpReceived, l.Received, name)
		s.count(xdpSent, l.Sent, name)
		s.count(xdpSlow, l.Slow, name)
		s.count(xdpLost, l.Lost, name)
		s.count(xdpFallbacks, l.Fallbacks, name)
		s.count(xdpMalformed, l.Malformed, name)
		s.frames(l, name)
	}
}

// frames shows the ledger of a lane's frames.
func (s *scrape) frames(l *config.XDPLane, lane string) {
	s.count(xdpRejected, l.Rejected, lane)
	s.count(xdpMisowned, l.Misowned, lane)
	s.emit(xdpHeld, float64(l.RXHeld), lane, "rx")
	s.emit(xdpHeld, float64(l.TXHeld), lane, "tx")
	s.emit(xdpHeld, float64(l.TXKernel), lane, "kernel")
}
