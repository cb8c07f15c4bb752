// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// twoUplinks creates u0 (MTU 1400, 192.0.2.2/24) and w0 (MTU 1300, 198.51.100.2/24).
func twoUplinks(t *testing.T) {
	t.Helper()
	enterNamespace(t)
	for _, u := range []struct {
		name, peer, addr string
		mtu              int
	}{
		{"u0", "u1", "192.0.2.2/24", 1400},
		{"w0", "w1", "198.51.100.2/24", 1300},
	} {
		addVeth(t, u.name, u.peer)
		if err := AddAddress(u.name, netip.MustParsePrefix(u.addr)); err != nil {
			t.Fatal(err)
		}
		if err := SetLinkUp(u.name, u.mtu); err != nil {
			t.Fatal(err)
		}
	}
}

// addVia adds a route, such as the default route, through a gateway.
func addVia(t *testing.T, dst, gw string, mtu, metric int) {
	t.Helper()
	err := netlink.RouteAdd(&netlink.Route{
		Dst: ipNet(netip.MustParsePrefix(dst)), Gw: netip.MustParseAddr(gw).AsSlice(), MTU: mtu, Priority: metric,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPathMTUFallsBackToLinkMTU(t *testing.T) {
	twoUplinks(t)
	addVia(t, "0.0.0.0/0", "192.0.2.1", 0, 0)
	addVia(t, "203.0.113.0/24", "192.0.2.1", 1234, 0)
	for dst, want := range map[string]int{"8.8.8.8": 1400, "203.0.113.9": 1234, "198.51.100.7": 1300, "127.0.0.1": 65536} {
		got, err := PathMTU(netip.MustParseAddr(dst), 0, 0)
		if err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", dst, got, err, want)
		}
	}
}

func TestPathMTUWithoutRouteReturnsErrNoRoute(t *testing.T) {
	enterNamespace(t)
	for _, dst := range []string{"203.0.113.9", "2001:db8::1"} {
		if _, err := PathMTU(netip.MustParseAddr(dst), 0, 0); !errors.Is(err, ErrNoRoute) {
			t.Errorf("%s: got error %v, want %v", dst, err, ErrNoRoute)
		}
	}
	if _, err := DefaultRouteMTU(); !errors.Is(err, ErrNoRoute) {
		t.Errorf("default route: got %v", err)
	}
}

func TestDefaultRouteWithLowestMetricWins(t *testing.T) {
	twoUplinks(t)
	check := func(wantMTU int, wantDevice string) {
		t.Helper()
		if got, err := DefaultRouteMTU(); err != nil || got != wantMTU {
			t.Errorf("got %d, %v, want %d", got, err, wantMTU)
		}
		if got := DefaultRouteDevice(IPv4); got != wantDevice {
			t.Errorf("got device %q, want %q", got, wantDevice)
		}
	}
	addVia(t, "0.0.0.0/0", "192.0.2.1", 0, 200)
	check(1400, "u0")
	addVia(t, "0.0.0.0/0", "198.51.100.1", 0, 100)
	check(1300, "w0")
	expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Type: unix.RTN_UNREACHABLE, Priority: 1}))
	check(1300, "w0")
	if got := DefaultRouteDevice(IPv6); got != "" {
		t.Errorf("IPv6: got device %q, want none", got)
	}
}

func TestDefaultRouteMTUUsesSmallestNextHopMTU(t *testing.T) {
	twoUplinks(t)
	hop := func(link, gw string) *netlink.NexthopInfo {
		l, err := FindLink(link)
		if err != nil {
			t.Fatal(err)
		}
		return &netlink.NexthopInfo{LinkIndex: l.Index, Gw: netip.MustParseAddr(gw).AsSlice()}
	}
	err := netlink.RouteAdd(&netlink.Route{
		Dst:       ipNet(netip.MustParsePrefix("0.0.0.0/0")),
		MultiPath: []*netlink.NexthopInfo{hop("u0", "192.0.2.1"), hop("w0", "198.51.100.1")},
	})
	if errors.Is(err, unix.EINVAL) {
		t.Skipf("needs multipath routes: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DefaultRouteMTU(); err != nil || got != 1300 {
		t.Errorf("got %d, %v, want 1300", got, err)
	}
	if got := DefaultRouteDevice(IPv4); got != "u0" {
		t.Errorf("got device %q, want u0, of the first next hop", got)
	}
}

func TestRoutesAreAddedToTheirTable(t *testing.T) {
	twoUplinks(t)
	for _, r := range []Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: "u0", Table: 51820},
		{Dst: netip.MustParsePrefix("::/0"), Link: "u0", Table: 51821},
		{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "u0"},
	} {
		if err := AddRoute(r); err != nil {
			t.Fatal(err)
		}
		if err := AddRoute(r); !errors.Is(err, unix.EEXIST) {
			t.Errorf("adding %s twice: got %v", r.Dst, err)
		}
	}
	for table, want := range map[uint32]bool{51819: true, 51820: false, 51821: false, 51822: true, MainTable: false} {
		if got, err := TableEmpty(table); err != nil || got != want {
			t.Errorf("table %d: empty %v, %v, want %v", table, got, err, want)
		}
	}
	main, err := listRoutes(IPv4, MainTable)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range main {
		if prefixOf(r.Dst).String() == "10.0.0.0/8" && r.Scope == netlink.SCOPE_LINK {
			return
		}
	}
	t.Errorf("10.0.0.0/8 with scope link is not in %v", main)
}

// TestMappedPrefixesAreIPv6 covers IPv4-mapped prefixes, which are IPv6 to the kernel.
func TestMappedPrefixesAreIPv6(t *testing.T) {
	twoUplinks(t)
	addr := netip.MustParsePrefix("::ffff:10.9.0.1/128")
	before, err := Addresses("u0")
	expect.NoError(t, err)
	expect.NoError(t, AddAddress("u0", addr))
	if err := AddAddress("u0", addr); !errors.Is(err, unix.EEXIST) {
		t.Errorf("adding %v twice: got %v", addr, err)
	}
	if got, err := Addresses("u0"); err != nil || !slices.Contains(got, addr) || len(got) != len(before)+1 {
		t.Errorf("got addresses %v, error %v, want %v and %v", got, err, before, addr)
	}
	expect.NoError(t, RemoveAddress("u0", addr))
	expect.NoError(t, RemoveAddress("u0", addr)) // a missing one is no error
	if got, err := Addresses("u0"); err != nil || !slices.Equal(got, before) {
		t.Errorf("after the removal: got %v, error %v, want %v", got, err, before)
	}
	for _, r := range []Route{
		{Dst: netip.MustParsePrefix("::ffff:0.0.0.0/96"), Link: "u0", Table: MainTable},
		{Dst: netip.MustParsePrefix("::ffff:10.0.0.1/128"), Link: "u0", Table: 4711},
	} {
		expect.NoError(t, AddRoute(r))
		if err := AddRoute(r); !errors.Is(err, unix.EEXIST) {
			t.Errorf("adding %v twice: got %v", r.Dst, err)
		}
		if got, _, err := LinkRoutes("u0"); err != nil || !slices.Equal(got, []Route{r}) {
			t.Errorf("got routes %v, error %v, want %v", got, err, r)
		}
		expect.NoError(t, RemoveRoute(r))
		if got, _, err := LinkRoutes("u0"); err != nil || len(got) != 0 {
			t.Errorf("after the removal: got %v, error %v, want none", got, err)
		}
	}
}

func TestLoopbackAddressHasScopeHost(t *testing.T) {
	twoUplinks(t)
	expect.NoError(t, AddAddress("u0", netip.MustParsePrefix("127.0.0.5/32")))
	link, err := netlink.LinkByName("u0")
	expect.NoError(t, err)
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	expect.NoError(t, err)
	for _, a := range addrs {
		want := netlink.SCOPE_UNIVERSE
		if a.IP.IsLoopback() {
			want = netlink.SCOPE_HOST
		}
		if a.Scope != int(want) {
			t.Errorf("%v: got scope %v, want %v", a.IPNet, netlink.Scope(a.Scope), want)
		}
	}
}
