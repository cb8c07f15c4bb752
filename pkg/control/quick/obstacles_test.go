// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
			predicted, err := Predict(h.Root, h.RunDir, i)
			expect.NoError(t, err)
			upErr := h.Up(t.Context(), i)
			if (len(predicted.Failures) > 0) != tc.fails || (upErr != nil) != tc.fails {
				t.Errorf("check finds %q, up fails with %v, want failure %v", predicted.Failures, upErr, tc.fails)
			}
			if upErr == nil {
				expect.NoError(t, h.Down(t.Context(), i))
			}
		})
	}
}

// TestLongerRoutesAreNoticed has routes and rules that take parts of AllowedIPs, or all of them, past the tunnel.
func TestLongerRoutesAreNoticed(t *testing.T) {
	const none, warns, fails = "none", "warns", "fails"
	for _, tc := range []struct {
		name, allowed string
		gateways      []string // routes by a gateway
		links         []string // routes to networks of a link
		rules         []string // of destinations that another table's default route takes
		want          string
	}{
		{name: "half of a prefix", allowed: "10.64.0.0/16", gateways: []string{"10.64.128.0/17"}, want: warns},
		{name: "both halves", allowed: "10.64.0.0/16", gateways: []string{"10.64.0.0/17", "10.64.128.0/17"}, want: fails},
		{name: "all in three parts", allowed: "10.64.0.0/16", gateways: []string{"10.64.0.0/17", "10.64.128.0/18", "10.64.192.0/18"}, want: fails},
		{name: "a small part", allowed: "10.64.0.0/16", gateways: []string{"10.64.3.0/24"}, want: warns},
		{name: "an endpoint", allowed: "10.64.0.0/16", gateways: []string{"10.64.3.1/32"}, want: none},
		{name: "a network of a link", allowed: "10.64.0.0/16", links: []string{"10.64.3.0/24"}, want: none},
		{name: "halves of the halves", allowed: "0.0.0.0/1, 128.0.0.0/1", gateways: []string{"0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/2"}, want: fails},
		{name: "a quarter of the halves", allowed: "0.0.0.0/1, 128.0.0.0/1", gateways: []string{"64.0.0.0/2"}, want: fails},
		{name: "public part of the default route", allowed: "0.0.0.0/0", gateways: []string{"8.8.8.0/24"}, want: warns},
		{name: "private part of the default route", allowed: "0.0.0.0/0", gateways: []string{"10.0.0.0/8"}, want: none},
		{name: "rule for the lower half", allowed: "10.64.0.0/16", rules: []string{"10.64.0.0/17"}, want: warns},
		{name: "rule for the upper half", allowed: "10.64.0.0/16", rules: []string{"10.64.128.0/17"}, want: warns},
		{name: "rule for all", allowed: "10.64.0.0/16", rules: []string{"10.64.0.0/16"}, want: fails},
		{name: "rules for both halves", allowed: "10.64.0.0/16", rules: []string{"10.64.0.0/17", "10.64.128.0/17"}, want: fails},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			gateway := netip.MustParseAddr("192.0.2.1").AsSlice()
			for _, dst := range tc.gateways {
				expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: parsed(dst), Gw: gateway}))
			}
			for _, dst := range tc.links {
				expect.NoError(t, hostnet.AddRoute(hostnet.Route{Dst: netip.MustParsePrefix(dst), Link: "u0"}))
			}
			if len(tc.rules) > 0 {
				expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: defaultNet(), Gw: gateway, Table: 7}))
			}
			for _, dst := range tc.rules {
				r := netlink.NewRule()
				r.Dst, r.Table, r.Priority = parsed(dst), 7, 5
				expect.NoError(t, netlink.RuleAdd(r))
			}
			i := h.open("wg0", "[Interface]\nPrivateKey = $KEY\nAddress = 172.16.9.1/24\n[Peer]\nPublicKey = $A\nAllowedIPs = "+tc.allowed+"\n")
			p, err := Predict(h.Root, h.RunDir, i)
			expect.NoError(t, err)
			upErr := h.Up(t.Context(), i)
			warned := strings.Contains(h.stderr.String(), "leave by u0")
			if (len(p.Failures) > 0) != (tc.want == fails) || (len(p.Warnings) > 0) != (tc.want == warns) {
				t.Errorf("check: got failures %q, warnings %q, want: %s", p.Failures, p.Warnings, tc.want)
			}
			if (upErr != nil) != (tc.want == fails) || tc.want != fails && warned != (tc.want == warns) {
				t.Errorf("up: got error %v, warning %v, want: %s", upErr, warned, tc.want)
			}
			if upErr == nil {
				if got, err := hostnet.OtherPaths([]netip.Prefix{netip.MustParsePrefix("172.16.9.0/24")}, "wg0"); err != nil || len(got) > 0 {
					t.Errorf("another prefix: got %v, error %v, want none", got, err)
				}
				expect.NoError(t, h.Down(t.Context(), i))
			}
		})
	}
}

func parsed(cidr string) *net.IPNet {
	_, n, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return n
}

func TestCheckPredictsRoutesOfAnotherTunnel(t *testing.T) {
	h := newHost(t)
	file := func(address, allowed string) string {
		return "[Interface]\nPrivateKey = $KEY\nAddress = " + address + "\n[Peer]\nPublicKey = $A\nAllowedIPs = " + allowed + "\n"
	}
	h.up(h.open("wg0", file("10.9.0.1/24", "10.98.0.0/24")))
	for allowed, fails := range map[string]bool{"10.98.0.0/24": true, "10.98.0.0/25": false, "10.98.0.0/16": false, "10.9.0.0/24": true} {
		i := h.open("wg1", file("10.8.0.1/24", allowed))
		p, err := Predict(h.Root, h.RunDir, i)
		expect.NoError(t, err)
		upErr := h.Up(t.Context(), i)
		if (len(p.Failures) > 0) != fails || (upErr != nil) != fails {
			t.Errorf("%s: check finds %q, up fails with %v, want failure: %v", allowed, p.Failures, upErr, fails)
		}
		if upErr == nil {
			expect.NoError(t, h.Down(t.Context(), i))
		}
	}
}

func TestCheckOfRunningInterfacePredictsReload(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", basic))
	for allowed, fails := range map[string]bool{"10.7.0.0/16": false, "192.0.2.0/24": true, "10.6.0.0/16": false} {
		i := h.open("wg0", strings.Replace(basic, "10.7.0.0/16", allowed, 1))
		p, err := Predict(h.Root, h.RunDir, i)
		expect.NoError(t, err)
		reloadErr := h.Reload(t.Context(), i)
		if !p.Running || (len(p.Failures) > 0) != fails || (reloadErr != nil) != fails || len(p.Warnings) > 0 {
			t.Errorf("%s: check finds %+v, reload fails with %v, want failure: %v", allowed, p, reloadErr, fails)
		}
	}
	h.setDown("wg0")
	if p, err := Predict(h.Root, h.RunDir, h.open("wg0", basic)); err != nil || !slices.Contains(p.Warnings, "it is down") {
		t.Errorf("down: got %+v, error %v, want a warning", p, err)
	}
}

func TestUpWarnsOfRefusedPackets(t *testing.T) {
	h := newHost(t)
	r := netlink.NewRule()
	r.Dst, r.Type, r.Priority = parsed("10.7.0.0/16"), unix.RTN_UNREACHABLE, 5
	expect.NoError(t, netlink.RuleAdd(r))
	h.up(h.open("wg0", basic))
	if want := "packets to 10.7.0.0/16 are refused"; !strings.Contains(h.stderr.String(), want) {
		t.Errorf("%q is not in\n%s", want, h.stderr.String())
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

// TestLoopThroughAnotherTunnelIsNoticed has two tunnels, each with the endpoint of the other one in its AllowedIPs.
func TestLoopThroughAnotherTunnelIsNoticed(t *testing.T) {
	h := newHost(t)
	file := func(address, endpoint, allowed string) string {
		return "[Interface]\nPrivateKey = $KEY\nAddress = " + address + "\n[Peer]\nPublicKey = $A\nEndpoint = " + endpoint + ":51820\nAllowedIPs = " + allowed + "\n"
	}
	h.up(h.open("wg0", file("10.9.0.1/24", "198.51.100.3", "198.51.100.2/32")))
	endpoint := []netip.Addr{netip.MustParseAddr("198.51.100.2")}
	for allowed, loops := range map[string]bool{"198.51.100.3/32": true, "198.51.100.4/32": false} {
		i := h.open("wg1", file("10.8.0.1/24", "198.51.100.2", allowed))
		into, err := LoopingPrefixes(h.Root, h.Sockets, i, endpoint)
		if err != nil || into[0].IsValid() != loops {
			t.Errorf("%s: check finds %v, error %v, want a loop: %v", allowed, into, err, loops)
		}
		h.stderr.Reset()
		h.up(i)
		if got := strings.Contains(h.stderr.String(), "198.51.100.2:51820 come back through another tunnel"); got != loops {
			t.Errorf("%s: up prints %q", allowed, h.stderr.String())
		}
		expect.NoError(t, h.Down(t.Context(), i))
	}
}
