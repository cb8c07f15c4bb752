// SPDX-License-Identifier: Apache-2.0

package xdp

import "github.com/ropewalk/ropewalk/pkg/netio/underlay"

var _ underlay.Counter = (*Port)(nil)

// SocketDrops implements underlay.Counter for both sockets of each lane: what found no frame or no room in the ring of an AF_XDP socket
// is beside what was discarded in front of the UDP socket, as far as the UDP port counts. What a driver without copies finds no frame
// for is among the device's own drops.
func (p *Port) SocketDrops(lanes []uint64) (sources uint64) {
	clear(lanes)
	if c, ok := p.udp.(underlay.Counter); ok {
		sources = c.SocketDrops(lanes)
	}
	s := p.Status()
	for i := range min(len(lanes), len(s.Lanes)) {
		lanes[i] += s.Lanes[i].Socket.RxDropped + s.Lanes[i].Socket.RxRingFull
	}
	return sources
}
