// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"testing"
)

// padded returns the padded length of an inner packet (paper, section 5.4.6): a multiple of 16 bytes, but not beyond the MTU.
func padded(n, mtu int) int { return min((n+15)/16*16, max(mtu, n)) }

// TestMTUIsExactForNestedEncapsulation covers cilium #28413, where one byte more stopped all traffic. It adds up the headers
// around a packet.
func TestMTUIsExactForNestedEncapsulation(t *testing.T) {
	four, six := WireGuardLayer(netip.MustParseAddr("192.0.2.1")), WireGuardLayer(netip.MustParseAddr("2001:db8::1"))
	vxlan := Layer{Bytes: VXLAN}
	for _, c := range []struct {
		name   string
		link   int
		layers []Layer
		want   int
	}{
		{"IPv4", 1500, []Layer{four}, 1440},
		{"IPv6", 1500, []Layer{six}, 1420},
		{"IPv4 in IPv6", 1500, []Layer{WireGuardLayer(netip.MustParseAddr("::ffff:192.0.2.1"))}, 1440},
		{"VXLAN in WireGuard, jumbo frames", 9001, []Layer{four, vxlan}, 8891},
		{"WireGuard in VXLAN", 1450, []Layer{six, vxlan}, 1320},
		{"a small virtual switch (k3s #5101)", 1400, []Layer{six}, 1320},
	} {
		t.Run(c.name, func(t *testing.T) {
			mtu := MTU(c.link, c.layers...)
			if mtu != c.want {
				t.Errorf("got %d, want %d", mtu, c.want)
			}
			for n, fits := range map[int]bool{mtu: true, mtu + 1: false} {
				size := n
				for i := len(c.layers) - 1; i >= 0; i-- {
					l := c.layers[i]
					if l.Bytes == WireGuard {
						size = 16 + padded(size, MTU(c.link, c.layers[:i+1]...)) + 16
					} else {
						size += 14 + 8
					}
					size += 8 + 20
					if l.IPv6 {
						size += 20
					}
				}
				if (size <= c.link) != fits {
					t.Errorf("a packet of %d bytes is %d on a link of %d", n, size, c.link)
				}
			}
		})
	}
}
