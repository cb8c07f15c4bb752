// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestLinkLocalPeersAreKnownByDevice has two peers with the same link-local address and port, on two devices, and none on a third.
func TestLinkLocalPeersAreKnownByDevice(t *testing.T) {
	const us, them = "[fe80::1]:51820", "[fe80::2]:51821"
	for device, row := range map[int]struct {
		lane    uint16
		gathers spread.Ports
	}{
		7:       {61005, between(62000, 62499)},
		8 << 16: {61006, between(62500, 62999)},
		9:       {51820, spread.Ports{}},
	} {
		s := loadSpreadFor(t, SpreadOptions{L2: true, Device: device})
		expect.NoError(t, s.SetAddresses(addresses("fe80::1%7", "fe80::1%524288", "fe80::9%9")))
		expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
		var want []netip.AddrPort
		for zone, p := range map[string]Peer{"7": {Lanes: []uint16{61005}, Gather: between(62000, 62499)}, "524288": {Lanes: []uint16{61006}, Gather: between(62500, 62999)}} {
			p.Tunnel, p.Endpoint = 51820, netip.AddrPortFrom(netip.MustParseAddr("fe80::2%"+zone), 51821)
			s.setOpenPeer(t, p)
			want = append(want, p.Endpoint)
		}
		peers, err := s.Peers()
		expect.NoError(t, err)
		slices.SortFunc(want, netip.AddrPort.Compare)
		if len(peers) != 2 || peers[0].Endpoint != want[0] || peers[1].Endpoint != want[1] {
			t.Errorf("got the peers %+v, want %v", peers, want)
		}
		if port, counts := sentFrom(t, s, data(us, them).bytes()); port != row.lane {
			t.Errorf("device %d: left from port %d, want %d; counted %v", device, port, row.lane, counts)
		}
		eachGather(t, s, func(t *testing.T, run func([]byte, skb) ([]byte, bool)) {
			for _, source := range []uint16{62005, 62505} {
				want := source
				if row.gathers.Contains(source) {
					want = 51821
				}
				if out, refused := run(data(from(them, source), us).bytes(), skb{}); !refused && sourcePort(out) != want {
					t.Errorf("device %d: a message from port %d became one from %d, want %d", device, source, sourcePort(out), want)
				}
			}
		})
	}
}
