// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
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

	expect.Eventually(t, "the kernel uses the IPv6 address", func() bool { return isLocal(netip.MustParseAddr("2001:db8:1::1")) })
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
		got, links, err := RouteFrom(src, netip.MustParseAddr(tt.dst), 0, 0)
		expect.NoError(t, err)
		if got != tt.want {
			t.Errorf("from %q to %s: got %d, want %d", tt.src, tt.dst, got, tt.want)
		}
		if tt.link == "" && links != nil || tt.link != "" && !slices.Equal(links, []int{indexes[tt.link]}) {
			t.Errorf("from %q to %s: got links %d, want %q of %v", tt.src, tt.dst, links, tt.link, indexes)
		}
	}
	if got, err := RouteMTU(netip.Addr{}, netip.MustParseAddr("100.64.0.1"), 0, 0); err == nil {
		t.Errorf("without a route: got %d", got)
	}
}
