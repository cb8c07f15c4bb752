// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestRouteMTUFollowsRouteAddressAndAdvertisement has a large and a small device, of which policy routing chooses by source address, and
// which a router advertisement makes smaller.
func TestRouteMTUFollowsRouteAddressAndAdvertisement(t *testing.T) {
	enterNamespace(t)
	indexes := map[string]int{}
	for name, mtu := range map[string]int{"large": 9000, "small": 1400} {
		addVeth(t, name, name+"-end")
		l, err := netlink.LinkByName(name)
		expect.NoError(t, err)
		expect.NoError(t, netlink.LinkSetMTU(l, mtu))
		indexes[name] = l.Attrs().Index
	}
	addAddress := func(device, prefix string) {
		a, err := netlink.ParseAddr(prefix)
		expect.NoError(t, err)
		a.Flags = unix.IFA_F_NODAD
		expect.NoError(t, netlink.AddrAdd(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: indexes[device]}}, a))
	}
	addAddress("large", "192.0.2.1/24")
	addAddress("small", "198.51.100.1/24")
	addAddress("large", "2001:db8:1::1/64")
	route := func(device, prefix string, table, mtu int) {
		dst := ipNet(netip.MustParsePrefix(prefix))
		expect.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: indexes[device], Dst: dst, Table: table, MTU: mtu}))
	}
	route("small", "203.0.113.0/24", unix.RT_TABLE_MAIN, 0)
	route("large", "203.0.113.0/24", 100, 0)
	route("large", "203.0.113.9/32", 100, 1300)
	route("large", "2001:db8:9::/64", unix.RT_TABLE_MAIN, 0)
	rule := netlink.NewRule()
	rule.Table, rule.Src = 100, ipNet(netip.MustParsePrefix("192.0.2.1/32"))
	expect.NoError(t, netlink.RuleAdd(rule))
	expect.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/large/mtu", []byte("1420"), 0o600))

	expect.Eventually(t, "the kernel uses the IPv6 address", func() bool { return IsLocal(netip.MustParseAddr("2001:db8:1::1")) })
	for _, tt := range []struct {
		src, dst string
		want     int
		link     string // of packets from src
	}{
		{"", "203.0.113.8", 1400, ""},
		{"192.0.2.1", "203.0.113.8", 9000, "large"},
		{"192.0.2.1", "203.0.113.9", 1300, "large"},
		{"198.51.100.1", "203.0.113.9", 1400, "small"},
		{"192.0.2.200", "203.0.113.8", 1400, ""}, // the host does not have it any more
		{"2001:db8:1::1", "203.0.113.8", 1400, ""},
		{"", "2001:db8:9::1", 1420, ""},
		{"2001:db8:1::1", "2001:db8:9::1", 1420, "large"},
		{"2001:db8:1::2", "2001:db8:9::1", 1420, ""},
	} {
		src, _ := netip.ParseAddr(tt.src)
		got, err := RouteFrom(src, netip.MustParseAddr(tt.dst), 0, 0)
		expect.NoError(t, err)
		if got.MTU != tt.want {
			t.Errorf("from %q to %s: got %d, want %d", tt.src, tt.dst, got.MTU, tt.want)
		}
		if got.HasSource != (tt.link != "") || got.HasSource && !slices.Equal(got.Links, []int{indexes[tt.link]}) {
			t.Errorf("from %q to %s: got %+v, want link %q of %v", tt.src, tt.dst, got, tt.link, indexes)
		}
	}
	if got, err := RouteMTU(netip.Addr{}, netip.MustParseAddr("100.64.0.1"), 0, 0); err == nil {
		t.Errorf("without a route: got %d", got)
	}
}

// TestHopsDifferForOtherRoutes changes the link, the gateway and the preferred source of a route, and what leaves the path unchanged.
func TestHopsDifferForOtherRoutes(t *testing.T) {
	enterNamespace(t)
	var links []int
	for i, device := range []string{"first", "second"} {
		addVeth(t, device, "far-"+device)
		expect.NoError(t, SetLinkUp(device, 1500))
		for host := range 2 {
			expect.NoError(t, AddAddress(device, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(2 + i), byte(1 + host)}), 24)))
		}
		l, err := FindLink(device)
		expect.NoError(t, err)
		links = append(links, l.Index)
	}
	hopsOf := func(dst string, r netlink.Route) string {
		r.Dst = ipNet(netip.MustParsePrefix(dst))
		expect.NoError(t, netlink.RouteReplace(&r))
		p, err := RouteFrom(netip.Addr{}, netip.MustParseAddr("203.0.113.1"), 0, 0)
		expect.NoError(t, err)
		return p.Hops
	}
	gateway := net.IPv4(192, 0, 2, 254)
	first := hopsOf("203.0.113.0/24", netlink.Route{LinkIndex: links[0], Gw: gateway})
	for name, r := range map[string]netlink.Route{
		"another gateway":         {LinkIndex: links[0], Gw: net.IPv4(192, 0, 2, 253)},
		"another link":            {LinkIndex: links[1], Gw: net.IPv4(192, 0, 3, 254)},
		"another source":          {LinkIndex: links[0], Gw: gateway, Src: net.IPv4(192, 0, 2, 2)},
		"several next hops":       {MultiPath: []*netlink.NexthopInfo{{LinkIndex: links[0], Gw: gateway}, {LinkIndex: links[1], Gw: net.IPv4(192, 0, 3, 254)}}},
		"several other next hops": {MultiPath: []*netlink.NexthopInfo{{LinkIndex: links[0], Gw: gateway}, {LinkIndex: links[1], Gw: net.IPv4(192, 0, 3, 253)}}},
	} {
		if other := hopsOf("203.0.113.0/24", r); other == first {
			t.Errorf("%s: got %q again", name, other)
		}
	}
	if more := hopsOf("203.0.113.0/25", netlink.Route{LinkIndex: links[0], Gw: gateway, MTU: 1400}); more != first {
		t.Errorf("a more specific route on the same path: got %q, want %q", more, first)
	}
}
