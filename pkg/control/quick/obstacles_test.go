// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestObstaclesAgreeWithUp compares both on a host whose LAN and default route have metric 0, as static ones, or 100, as those of a DHCP client.
func TestObstaclesAgreeWithUp(t *testing.T) {
	const zero, dhcp = 0, 100
	for _, tc := range []struct {
		name, address, table, allowed string
		metric                        int
		fails                         bool
	}{
		{name: "LAN", allowed: "192.0.2.0/24", fails: true},
		{name: "LAN of a DHCP client", allowed: "192.0.2.0/24", metric: dhcp},
		{name: "LAN in the main table", table: "main", allowed: "192.0.2.0/24", fails: true},
		{name: "LAN in another table", table: "7", allowed: "192.0.2.0/24"},
		{name: "IPv6 LAN", allowed: "fd00:7::/64", fails: true},
		{name: "IPv6 LAN in another table", table: "7", allowed: "fd00:7::/64"},
		{name: "part of the LAN, with an address in it", address: "192.0.2.9/24", allowed: "192.0.2.128/25", fails: true},
		{name: "part of the LAN", allowed: "192.0.2.128/25"},
		{name: "the host itself", allowed: "192.0.2.2/32"},
		{name: "link-local", allowed: "fe80::/64"},
		{name: "default route, auto", table: "auto", allowed: "0.0.0.0/0"},
		{name: "default route, main", table: "main", allowed: "0.0.0.0/0", fails: true},
		{name: "default route, 254", table: "254", allowed: "0.0.0.0/0", fails: true},
		{name: "default route, 0", table: "0", allowed: "0.0.0.0/0", fails: true},
		{name: "default route, of rt_tables", table: "haupt", allowed: "0.0.0.0/0", fails: true},
		{name: "default route, main, DHCP client", table: "main", allowed: "0.0.0.0/0", metric: dhcp},
		{name: "another network, main", table: "main", allowed: "10.7.0.0/16"},
		{name: "own network, auto", allowed: "10.9.0.0/24"},
		{name: "own network, main", table: "main", allowed: "10.9.0.0/24", fails: true},
		{name: "own network, off", table: "off", allowed: "10.9.0.0/24, 192.0.2.0/24"},
		{name: "own network without a route", address: "10.9.0.1/0", allowed: "10.8.0.0/24"},
		{name: "default route in an own network without a route", address: "10.9.0.1/0", allowed: "0.0.0.0/0"},
		{name: "own IPv6 network, main", address: "fd09::1/64", table: "main", allowed: "fd09::/64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.Root = fstest.MapFS{"etc/iproute2/rt_tables": {Data: []byte("254 haupt\n")}}
			expect.NoError(t, hostnet.AddAddress("u0", netip.MustParsePrefix("fd00:7::2/64")))
			if tc.metric != zero {
				h.setMetric(tc.metric)
			}
			if tc.address == "" {
				tc.address = "10.9.0.1/24"
			}
			file := "[Interface]\nPrivateKey = $KEY\nAddress = " + tc.address + "\n"
			if tc.table != "" {
				file += "Table = " + tc.table + "\n"
			}
			i := h.open("wg0", file+"[Peer]\nPublicKey = $A\nAllowedIPs = "+tc.allowed+"\n")
			reasons, err := Obstacles(h.Root, i)
			expect.NoError(t, err)
			upErr := h.Up(t.Context(), i)
			if (len(reasons) > 0) != tc.fails || (upErr != nil) != tc.fails {
				t.Errorf("check finds %q, up fails with %v, want failure %v", reasons, upErr, tc.fails)
			}
			if upErr == nil {
				expect.NoError(t, h.Down(t.Context(), i))
			}
		})
	}
}

// setMetric gives u0's IPv4 routes another metric.
func (h *testHost) setMetric(metric int) {
	h.t.Helper()
	l, err := netlink.LinkByName("u0")
	expect.NoError(h.t, err)
	routes, err := dumped(func() ([]netlink.Route, error) { return netlink.RouteList(l, netlink.FAMILY_V4) })
	expect.NoError(h.t, err)
	for i := range routes {
		r := routes[i]
		r.Priority = metric
		expect.NoError(h.t, netlink.RouteAdd(&r))
	}
	for i := range routes {
		expect.NoError(h.t, netlink.RouteDel(&routes[len(routes)-1-i]))
	}
}
