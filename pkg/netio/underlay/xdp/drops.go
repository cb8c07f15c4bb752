// SPDX-License-Identifier: Apache-2.0

package xdp

import "github.com/ropewalk/ropewalk/pkg/netio/underlay"

var _ underlay.Counter = (*Port)(nil)

// SocketDrops implements underlay.Counter for both sockets of each lane. It adds the drops of the
// AF_XDP socket (no free frame, or a full ring) to the UDP socket's, if that port counts them. In
// zero-copy mode the device's own drops include drops for lack of a frame, and frames that the
// device does not send.
func (p *Port) SocketDrops(lanes []underlay.SocketDrops) (sources underlay.SocketDrops) {
	clear(lanes)
	if c, ok := p.udpPort.(underlay.Counter); ok {
		sources = c.SocketDrops(lanes)
	}
	s := p.Status()
	for i := range min(len(lanes), len(s.Lanes)) {
		n := s.Lanes[i].Socket.RxDropped + s.Lanes[i].Socket.RxRingFull
		lanes[i].Add(underlay.SocketDrops{Buffers: n, Datagrams: n, Unsent: s.Lanes[i].Unsent})
	}
	return sources
}
