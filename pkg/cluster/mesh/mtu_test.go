// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"testing"
)

// padded returns the padded length of an inner packet (paper, section 5.4.6): a multiple of 16 bytes, but not beyond the MTU.
func padded(n, mtu int) int { return min((n+15)/16*16, max(mtu, n)) }

// TestMTUIsExact covers cilium #28413, where one byte more stopped all traffic. It adds up the headers around a packet.
func TestMTUIsExact(t *testing.T) {
	for _, c := range []struct {
		name, endpoint     string
		link, want, header int
	}{
		{"IPv4", "192.0.2.1", 1500, 1440, 20},
		{"IPv6", "2001:db8::1", 1500, 1420, 40},
		{"IPv4 in IPv6", "::ffff:192.0.2.1", 1500, 1440, 20},
		{"jumbo frames", "192.0.2.1", 9001, 8941, 20},
		{"a small virtual switch (k3s #5101)", "2001:db8::1", 1400, 1320, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			mtu := MTU(c.link, netip.MustParseAddr(c.endpoint))
			if mtu != c.want {
				t.Errorf("got %d, want %d", mtu, c.want)
			}
			for n, fits := range map[int]bool{mtu: true, mtu + 1: false} {
				if size := c.header + 8 + 16 + padded(n, mtu) + 16; (size <= c.link) != fits {
					t.Errorf("a packet of %d bytes is %d on a link of %d", n, size, c.link)
				}
			}
		})
	}
}
