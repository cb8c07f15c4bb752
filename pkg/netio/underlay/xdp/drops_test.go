// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestDropsForLackOfFramesAreCounted receives nothing for a while, and then counts the remaining frames. A veth may
// drop some too.
func TestDropsForLackOfFramesAreCounted(t *testing.T) {
	s := newTestNet(t)
	s.drain()
	to := s.endpoint(0, s.port, false)
	drops := func() uint64 {
		lanes := []underlay.SocketDrops{{Buffers: 7}, {Buffers: 7}}
		if sources := s.port.SocketDrops(lanes); sources.Buffers != 0 || lanes[1].Buffers != 0 || lanes[0].Datagrams != lanes[0].Buffers {
			t.Errorf("%v drops at sources, %v at the lane, %v at a missing lane", sources, lanes[0], lanes[1])
		}
		return lanes[0].Buffers
	}
	before, sent := drops(), uint64(0)
	expect.Eventually(t, "drops", func() bool {
		for range xsk.DefaultFrames / 2 {
			_, err := s.peer.WriteToUDPAddrPort(message(4, 148), to.Dst)
			expect.NoError(t, err)
			sent++
		}
		return drops() > before
	})
	rx, received := elements(8, 65535), uint64(0)
	for n := 1; n > 0; {
		n = s.port.Lane(0).TryRecv(rx)
		for i := range rx[:n] {
			received += uint64((rx[i].N + rx[i].SegSize - 1) / rx[i].SegSize)
		}
	}
	lost := drops() - before
	if received == 0 || received > xsk.DefaultFrames || received+lost > sent {
		t.Errorf("%d received, %d dropped, %d sent", received, lost, sent)
	}
	expect.NoError(t, s.port.Close())
	if after := drops() - before; after != lost {
		t.Errorf("%d dropped, and %d once closed", lost, after)
	}
}

// TestFramesThatDeviceRefusesAreCounted sends frames that the other end of the cable does not take: its MTU is smaller.
func TestFramesThatDeviceRefusesAreCounted(t *testing.T) {
	s := newTestNet(t)
	s.link(1, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1280) })
	const frames = 3
	for range frames {
		sendOne(t, s.port.Lane(0), &s.to, message(4, 1400))
	}
	lanes := make([]underlay.SocketDrops, 1)
	expect.Eventually(t, "the refused frames to be counted", func() bool {
		s.port.SocketDrops(lanes)
		return lanes[0].Unsent == frames
	})
	expect.NoError(t, s.port.Close())
	s.port.SocketDrops(lanes)
	if lost := s.port.Status().Lanes[0].Lost; lost != frames || lanes[0] != (underlay.SocketDrops{Unsent: frames}) {
		t.Errorf("%d of %d lost, %+v dropped", lost, frames, lanes[0])
	}
}
