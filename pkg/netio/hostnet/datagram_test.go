// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// portRules makes rules by which UDP datagrams from port 51820, and those to port 4500, have table 100.
func portRules(t *testing.T) {
	t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, change := range []func(*netlink.Rule){
			func(r *netlink.Rule) { r.Sport = netlink.NewRulePortRange(51820, 51820) },
			func(r *netlink.Rule) { r.Dport = netlink.NewRulePortRange(4500, 4500) },
		} {
			r := netlink.NewRule()
			r.Family, r.Table, r.IPProto = family, 100, unix.IPPROTO_UDP
			change(r)
			expect.NoError(t, netlink.RuleAdd(r))
		}
	}
}

// TestDatagramLinksFollowRulesForPorts has a default route into a tunnel, and rules for ports that lead to the uplink, to both, and nowhere.
func TestDatagramLinksFollowRulesForPorts(t *testing.T) {
	enterNamespace(t)
	indexes := map[string]int{}
	for _, name := range []string{"tunnel", "uplink"} {
		addVeth(t, name, name+"-end")
		l, err := FindLink(name)
		expect.NoError(t, err)
		indexes[name] = l.Index
	}
	portRules(t)
	for _, prefix := range []string{"0.0.0.0/0", "::/0"} {
		dst := ipNet(netip.MustParsePrefix(prefix))
		for _, r := range []netlink.Route{
			{Table: unix.RT_TABLE_MAIN, LinkIndex: indexes["tunnel"]},
			{Table: 100, LinkIndex: indexes["uplink"]},
		} {
			r.Dst = dst
			expect.NoError(t, netlink.RouteAdd(&r))
		}
	}
	for prefix, gateway := range map[string]net.IP{"203.0.113.0/24": nil, "2001:db8:2::/64": net.ParseIP("fe80::1")} {
		both := []*netlink.NexthopInfo{{LinkIndex: indexes["tunnel"], Gw: gateway}, {LinkIndex: indexes["uplink"], Gw: gateway}}
		expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix(prefix)), MultiPath: both}))
	}
	expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("192.0.3.0/24")), Type: unix.RTN_PROHIBIT}))
	for _, tt := range []struct {
		src      string
		from     uint16
		dst      string
		want     []string
		wantNone bool
	}{
		{"", 51820, "198.51.100.1:51820", []string{"uplink"}, false},
		{"192.0.2.2", 51820, "198.51.100.1:51820", []string{"uplink"}, false},
		{"192.0.2.200", 51820, "198.51.100.1:51820", []string{"uplink"}, false}, // the host does not have it
		{"", 51821, "198.51.100.1:51820", []string{"tunnel"}, false},
		{"", 51821, "198.51.100.1:4500", []string{"uplink"}, false},
		{"", 0, "198.51.100.1:51820", []string{"tunnel"}, false},
		{"", 51820, "[2001:db8:1::1]:51820", []string{"uplink"}, false},
		{"", 51821, "[2001:db8:1::1]:51820", []string{"tunnel"}, false},
		{"", 51821, "203.0.113.1:51820", []string{"tunnel", "uplink"}, false},
		{"", 51821, "[2001:db8:2::1]:51820", []string{"tunnel", "uplink"}, false},
		{"", 51821, "192.0.3.1:51820", nil, true},
	} {
		src, _ := netip.ParseAddr(tt.src)
		got, err := DatagramLinks(netip.AddrPortFrom(src, tt.from), netip.MustParseAddrPort(tt.dst), 0, 0)
		var want []int
		for _, name := range tt.want {
			want = append(want, indexes[name])
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || errors.Is(err, ErrNoRoute) != tt.wantNone || err != nil && !tt.wantNone {
			t.Errorf("from %s port %d to %s: got %v, %v; want %v of %v", tt.src, tt.from, tt.dst, got, err, tt.want, indexes)
		}
	}
}

// TestDatagramLinksLeaveOutDeadHops sets one of two links down.
func TestDatagramLinksLeaveOutDeadHops(t *testing.T) {
	enterNamespace(t)
	var hops []*netlink.NexthopInfo
	for _, name := range []string{"first", "second"} {
		addVeth(t, name, name+"-end")
		l, err := FindLink(name)
		expect.NoError(t, err)
		hops = append(hops, &netlink.NexthopInfo{LinkIndex: l.Index})
	}
	expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("203.0.113.0/24")), MultiPath: hops}))
	second, err := netlink.LinkByIndex(hops[1].LinkIndex)
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetDown(second))
	got, err := DatagramLinks(netip.AddrPort{}, netip.MustParseAddrPort("203.0.113.1:51820"), 0, 0)
	expect.NoError(t, err)
	if want := []int{hops[0].LinkIndex}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
