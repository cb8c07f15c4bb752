// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// underlay emits the path of data messages, and the counters of XDP. The counters of XDP are absent while it is not in use;
// they start at 0 when the port is opened.
func (s *scrape) underlay() {
	u := &s.Stats.Path
	s.emit(underlayInfo, 1, u.Mode.String(), u.Path.String(), label(u.Device), u.How)
	s.emit(xdpLanes, float64(u.Lanes))
	for event, n := range u.Events {
		s.count(xdpEvents, n, event)
	}
	for reason, n := range u.Drops {
		s.count(xdpDropped, n, reason)
	}
	for i := range u.XDP {
		l, name := &u.XDP[i], strconv.Itoa(i)
		s.count(xdpReceived, l.Received, name)
		s.count(xdpSent, l.Sent, name)
		s.count(xdpUDPRuns, l.Slow, name)
		s.count(xdpLost, l.Lost, name)
		s.count(xdpFallbacks, l.Fallbacks, name)
		s.count(xdpMalformed, l.Malformed, name)
		s.frames(l, name)
	}
}

// frames emits the use of the frames of a lane's AF_XDP socket.
func (s *scrape) frames(l *config.XDPLane, lane string) {
	s.count(xdpRejected, l.Rejected, lane)
	s.count(xdpOwnership, l.FrameOwnershipErrors, lane)
	s.emit(xdpHeld, float64(l.RXHeld), lane, "rx")
	s.emit(xdpHeld, float64(l.TXHeld), lane, "tx")
	s.emit(xdpHeld, float64(l.TXKernel), lane, "kernel")
}
