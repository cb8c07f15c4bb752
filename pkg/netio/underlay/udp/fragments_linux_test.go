// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestSmallSendBufferPassesLargestDatagrams sends a datagram in fragments, or a train, through an empty send buffer of the smallest size, and
// one that has room for another packet.
func TestSmallSendBufferPassesLargestDatagrams(t *testing.T) {
	for _, mtu := range []int{1280, 1500, 1700, 9000} {
		for _, v6 := range []bool{false, true} {
			for _, segments := range []int{1, 45} {
				for _, before := range []int{0, 7} { // datagrams
					t.Run(fmt.Sprintf("MTU %d, IPv6 %v, %d segments behind %d", mtu, v6, segments, before), func(t *testing.T) {
						expectLargestPasses(t, mtu, v6, segments, before)
					})
				}
			}
		}
	}
}

func expectLargestPasses(t *testing.T, mtu int, v6 bool, segments, before int) {
	t.Helper()
	slowDevice(t)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetMTU(lo, mtu))
	p := open(t, Config{SendBuffer: minSendBuffer})
	to, lane := behindSlowDevice(v6), p.Lane(0)
	for range before {
		runs := []underlay.Run{small(&to, 0, 0)}
		runs[0].Parts[0] = runs[0].Parts[0][:1200]
		lane.Send(runs)
		expect.NoError(t, runs[0].Err)
	}
	size := segments * 1200
	if segments == 1 {
		size = underlay.MaxDatagramRun
	}
	largest := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, size)}, SegSize: size / segments, Segments: segments}}
	if lane.Send(largest) != 0 {
		t.Errorf("sending %d bytes: %v", size, largest[0].Err)
	}
}
