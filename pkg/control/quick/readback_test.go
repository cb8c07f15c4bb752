// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// leads checks by which link packets to an address leave.
func (h *testHost) leads(addr, link string) {
	h.t.Helper()
	to, err := hostnet.RouteTo(netip.MustParseAddr(addr), 0, 0)
	if err != nil || to.Device != link {
		h.t.Errorf("packets to %s leave by %q, error %v, want %s", addr, to.Device, err, link)
	}
}

// TestAllowedIPsOfZeroNetworkEnterTunnel: the kernel makes no route for an address whose network
// begins at 0.0.0.0.
func TestAllowedIPsOfZeroNetworkEnterTunnel(t *testing.T) {
	for _, addr := range []string{"10.9.0.1/0", "10.9.0.1/4"} {
		h := newHost(t)
		i := h.open("wg0", "[Interface]\nPrivateKey = $KEY\nAddress = "+addr+"\n[Peer]\nPublicKey = $A\nEndpoint = 192.0.2.9:1\nAllowedIPs = 10.8.0.0/24\n")
		h.up(i)
		h.leads("10.8.0.5", "wg0")
		expect.NoError(t, h.Reload(t.Context(), i))
		h.leads("10.8.0.5", "wg0")
	}
}

// TestIPv6SurvivesSmallUnderlay: the path to the endpoint has IPv6's minimum MTU, so less is left
// for the tunnel.
func TestIPv6SurvivesSmallUnderlay(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, hostnet.SetMTU("u0", 1280))
	h.up(h.open("wg0", strings.Replace(basic, "MTU = 1320\n", "", 1)))
	h.leads("fd09::9", "wg0")
	if link, err := hostnet.FindLink("wg0"); err != nil || link.MTU != 1280 {
		t.Errorf("got %+v, error %v, want MTU 1280", link, err)
	}
}

// TestReloadRaisesMTUForIPv6: Up has set a lower MTU, which IPv4 alone permits.
func TestReloadRaisesMTUForIPv6(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, hostnet.SetMTU("u0", 1280))
	text := strings.NewReplacer("MTU = 1320\n", "", ", fd09::1/64", "", ", fd07::/48", "").Replace(basic)
	h.up(h.open("wg0", text))
	if link, err := hostnet.FindLink("wg0"); err != nil || link.MTU != 1200 {
		t.Errorf("got %+v, error %v, want MTU 1200", link, err)
	}
	expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.Replace(basic, "MTU = 1320\n", "", 1))))
	h.leads("fd09::9", "wg0")
}

// tampered are changes of the host between the steps of Up and the reading back, and the errors.
func tampered() map[string]func(*testHost) (want string) {
	rule := func(h *testHost, change func(*netlink.Rule)) {
		r := netlink.NewRule()
		change(r)
		expect.NoError(h.t, netlink.RuleAdd(r))
	}
	return map[string]func(*testHost) string{
		"nothing": func(*testHost) string { return "" },
		"address": func(h *testHost) string {
			expect.NoError(h.t, hostnet.RemoveAddress("wg0", netip.MustParsePrefix("fd09::1/64")))
			return "address fd09::1/64 is missing"
		},
		"route": func(h *testHost) string {
			expect.NoError(h.t, hostnet.RemoveRoute(hostnet.Route{Dst: netip.MustParsePrefix("10.7.0.0/16"), Link: "wg0"}))
			return "route 10.7.0.0/16 is missing in table 254"
		},
		"default route": func(h *testHost) string {
			expect.NoError(h.t, hostnet.RemoveRoute(hostnet.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: "wg0", Table: firstTable}))
			return "route 0.0.0.0/0 is missing in table 51820; packets to 0.0.0.0/0 leave by u0, on the route to 0.0.0.0/0"
		},
		"MTU": func(h *testHost) string {
			expect.NoError(h.t, hostnet.SetMTU("wg0", 1300))
			return "its MTU is 1300, not 1320"
		},
		"rule": func(h *testHost) string {
			expect.NoError(h.t, hostnet.DeleteRule(hostnet.Rule{Family: hostnet.IPv4, Table: firstTable, NotMark: firstTable, Priority: 32765}))
			return "the IPv4 rule for table 51820 is missing; packets to 0.0.0.0/0 leave by u0, on the route to 0.0.0.0/0"
		},
		"another's rule": func(h *testHost) string {
			expect.NoError(h.t, netlink.RouteAdd(&netlink.Route{Dst: defaultNet(), Gw: netip.MustParseAddr("192.0.2.1").AsSlice(), Table: 7}))
			rule(h, func(r *netlink.Rule) { r.Table, r.Priority = 7, 5 })
			return "packets to 10.7.0.0/16 leave by u0, on the route to 0.0.0.0/0; packets to 0.0.0.0/0 leave by u0, on the route to 0.0.0.0/0"
		},
		"a LAN and a host inside": func(h *testHost) string {
			for _, dst := range []string{"128.0.0.0/8", "10.7.128.0/32"} {
				p := netip.MustParsePrefix(dst)
				expect.NoError(h.t, hostnet.AddRoute(hostnet.Route{Dst: p, Link: "u0"}))
			}
			return ""
		},
		"half of the default route": func(h *testHost) string {
			expect.NoError(h.t, hostnet.AddRoute(hostnet.Route{Dst: netip.MustParsePrefix("128.0.0.0/1"), Link: "u0"}))
			return "packets to 0.0.0.0/0 leave by u0, on the route to 128.0.0.0/1"
		},
		"another's prohibition": func(h *testHost) string {
			rule(h, func(r *netlink.Rule) { r.Type, r.Priority = 8, 5 }) // FR_ACT_PROHIBIT
			return ""
		},
		"down": func(h *testHost) string {
			l, err := netlink.LinkByName("wg0")
			expect.NoError(h.t, err)
			expect.NoError(h.t, netlink.LinkSetDown(l))
			return "it is down"
		},
	}
}

func TestUpReadsBackTheKernelsConfiguration(t *testing.T) {
	for name, tamper := range tampered() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			i := h.open("wg0", strings.NewReplacer("::/0", "fe80::/64, ff00::/8, ::ffff:1.2.3.0/120, ::/0", "10.9.0.1/24", "10.9.0.1/32").Replace(everything))
			h.up(i)
			j := &job{Runner: h.Runner, Interface: i}
			st, _ := j.loadState()
			want := tamper(h)
			err := readBack{link: "wg0", planned: *st.Settings, probe: probed(st.Settings)}.run(t.Context(), j)
			if want == "" {
				expect.NoError(t, err)
				return
			}
			if want = "the kernel's configuration of wg0 differs from the plan: " + want; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got error %v, want %s", err, want)
			}
		})
	}
}

// TestUpWithUnexpectedPathIsUndone: a rule of another program precedes the main table.
func TestUpWithUnexpectedPathIsUndone(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: defaultNet(), Gw: netip.MustParseAddr("192.0.2.1").AsSlice(), Table: 7}))
	r := netlink.NewRule()
	r.Table = 7
	expect.NoError(t, netlink.RuleAdd(r))
	before := h.snapshot()
	err := h.Up(t.Context(), h.open("wg0", basic))
	if err == nil || !strings.Contains(err.Error(), "packets to 10.7.0.0/16 leave by u0") {
		t.Errorf("got error %v, want one that names the prefix and the link", err)
	}
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

// TestHooksMayChangeWhatUpReadBack: they run afterwards, and Reload accepts what they did.
func TestHooksMayChangeWhatUpReadBack(t *testing.T) {
	if _, err := lookPath("ip"); err != nil {
		t.Skip("needs ip(8)")
	}
	h := newHost(t)
	text := strings.Replace(basic, "MTU", "PostUp = ip rule add lookup 7 && ip route add default via 192.0.2.1 table 7\nMTU", 1)
	h.up(h.open("wg0", text))
	h.leads("10.7.0.9", "u0")
	expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.Replace(text, "[Peer]", "[Peer]\nPersistentKeepalive = 5", 1))))
	err := h.Reload(t.Context(), h.open("wg0", strings.Replace(text, "10.7.0.0/16", "10.7.0.0/16, 10.6.0.0/16", 1)))
	if err == nil || strings.Contains(err.Error(), "10.7.") || !strings.Contains(err.Error(), "packets to 10.6.0.0/16 leave by u0") {
		t.Errorf("another prefix: got error %v, want one that names it alone", err)
	}
}

// TestReloadLooksUpOnlyWhatItChanges: a file may have tens of thousands of prefixes.
func TestReloadLooksUpOnlyWhatItChanges(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", basic))
	for ips, want := range map[string][]string{
		"10.7.0.0/16, fd07::/48":                          nil,
		"10.7.0.0/16, fd07::/48\nPersistentKeepalive = 5": nil,
		"10.7.0.0/16, fd07::/48, 10.6.0.0/16":             {"10.6.0.0/16"},
		"10.6.0.0/16, fd07::/48":                          {"10.6.0.0/16"},
		"10.7.0.0/16, fd07::/48, 0.0.0.0/0":               {"0.0.0.0/0", "10.7.0.0/16", "10.9.0.2/32", "fd07::/48"}, // with rules
	} {
		change, err := h.PlanReload(t.Context(), h.open("wg0", strings.Replace(basic, "10.7.0.0/16, fd07::/48", ips, 1)))
		expect.NoError(t, err)
		var got []string
		for _, s := range change.Steps {
			if check, ok := s.(readBack); ok {
				for _, p := range check.probe {
					got = append(got, p.String())
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%q: looks %q up, want %q", ips, got, want)
		}
	}
}

// TestPathIntoAnotherTunnelIsAWarning: two tunnels have the same subnet.
func TestPathIntoAnotherTunnelIsAWarning(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", basic))
	h.stderr.Reset()
	h.up(h.open("wg1", strings.NewReplacer("10.7.", "10.6.", "fd07", "fd06", "fd09::1/64", "fd08::1/64").Replace(basic)))
	if want := "Warning: wg1: packets to 10.9.0.2/32 leave by wg0, on the route to 10.9.0.0/24\n"; !strings.Contains(h.stderr.String(), want) {
		t.Errorf("%q is not in\n%s", want, h.stderr.String())
	}
}

// TestReloadOfTunnelBehindAnotherDefaultRoute: the tunnel that came up later has the default route.
func TestReloadOfTunnelBehindAnotherDefaultRoute(t *testing.T) {
	h := newHost(t)
	first := h.open("wg0", everything)
	h.up(first)
	h.up(h.open("wg1", strings.NewReplacer(".9.", ".8.", "fd09", "fd08", ".7.", ".6.", "DNS", "MTU = 1320\nDNS").Replace(everything)))
	h.stderr.Reset()
	expect.NoError(t, h.Reload(t.Context(), first))
	if got := h.stderr.String(); !strings.HasPrefix(got, "wg0: nothing changed\nWarning: wg0: packets to ::/0 leave by wg1") {
		t.Errorf("got %q, want that nothing changed, and a warning", got)
	}
}

func TestTunnelWithoutPriorityForItsRulesIsRefused(t *testing.T) {
	h := newHost(t)
	r := netlink.NewRule()
	r.Table, r.Priority, r.IifName = int(hostnet.MainTable), 3, "u0"
	expect.NoError(t, netlink.RuleAdd(r))
	text := strings.Replace(basic, "10.7.0.0/16", "0.0.0.0/0", 1)
	before := h.snapshot()
	first := h.open("wg0", text)
	h.up(first)
	one := h.rules()
	err := h.Up(t.Context(), h.open("wg1", strings.NewReplacer(".9.", ".8.", "fd09", "fd08", "fd07", "fd06").Replace(text)))
	if err == nil || !strings.Contains(err.Error(), "no lower priority than 0 is left") {
		t.Errorf("got error %v, want one that names the priority", err)
	}
	if diff := cmp.Diff(one, h.rules()); diff != "" {
		t.Error(diff)
	}
	expect.NoError(t, h.Down(t.Context(), first))
	expect.NoError(t, hostnet.SetSrcValidMark(false))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

func TestReloadAcceptsAddressesChangedByHooks(t *testing.T) {
	for name, addrs := range map[string][2]string{
		"IPv4 peer":   {"172.20.0.1/32", "172.20.0.1/32 peer 172.20.0.2/32"},
		"IPv4 subnet": {"172.20.0.1/24", "172.20.0.1/32 peer 172.20.0.2/32"},
		"IPv6 peer":   {"fe80::1/64", "fe80::1/128 peer fe80::2/64"},
		"IPv6 length": {"fd09::1/64", "fd09::1/128"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			text := strings.NewReplacer("10.9.0.1/24, fd09::1/64", addrs[0], "MTU", "Table = off\nPostUp = ip addr del dev %i "+addrs[0]+" && ip addr add dev %i "+addrs[1]+"\nMTU").Replace(basic)
			h.up(h.open("wg0", text))
			want := h.snapshot()
			i := h.open("wg0", strings.Replace(text, "[Peer]", "[Peer]\nPersistentKeepalive = 25", 1))
			expect.NoError(t, h.Reload(t.Context(), i))
			if diff := cmp.Diff(want, h.snapshot()); diff != "" {
				t.Error(diff)
			}
			st, err := (&job{Runner: h.Runner, Interface: i}).status()
			if err != nil || st.Peers[0].Keepalive != 25 {
				t.Errorf("got %+v, error %v, want a keepalive of 25 s", st.Peers, err)
			}
			expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.NewReplacer("/24", "/25", "/64", "/60", "/32", "/31").Replace(text))))
		})
	}
}

// TestHalvesOfDefaultRouteAreNoticed: a DHCP server sets them (option 121), before Up or afterwards.
func TestHalvesOfDefaultRouteAreNoticed(t *testing.T) {
	h := newHost(t)
	half := hostnet.Route{Dst: netip.MustParsePrefix("128.0.0.0/1"), Link: "u0"}
	const want = "packets to 0.0.0.0/0 leave by u0, on the route to 128.0.0.0/1"
	expect.NoError(t, hostnet.AddRoute(half))
	before, i := h.snapshot(), h.open("wg0", everything)
	if predicted, err := Predict(h.Root, h.RunDir, i); err != nil || !slices.Contains(predicted.Failures, want) {
		t.Errorf("check finds %q, error %v, want %s", predicted.Failures, err, want)
	}
	if err := h.Up(t.Context(), i); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
	_, dst, err := net.ParseCIDR(half.Dst.String())
	expect.NoError(t, err)
	for _, tt := range []struct {
		mode  netlink.TuntapMode
		fails bool
	}{{netlink.TUNTAP_MODE_TUN, false}, {netlink.TUNTAP_MODE_TAP, true}} { // another tunnel, and a virtual machine's cable
		other := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "other", Flags: net.FlagUp}, Mode: tt.mode}
		expect.NoError(t, netlink.LinkAdd(other))
		expect.NoError(t, netlink.LinkSetUp(other))
		expect.NoError(t, netlink.RouteReplace(&netlink.Route{Dst: dst, Scope: unix.RT_SCOPE_LINK, LinkIndex: other.Index}))
		if err := h.Up(t.Context(), h.open("wg0", everything)); (err != nil) != tt.fails {
			t.Errorf("%s: got error %v", tt.mode, err)
		} else if err == nil {
			expect.NoError(t, h.Down(t.Context(), h.open("wg0", everything)))
		}
		expect.NoError(t, netlink.LinkDel(other))
	}
	expect.NoError(t, hostnet.AddRoute(half))
	expect.NoError(t, netlink.RouteDel(&netlink.Route{Dst: dst, Scope: unix.RT_SCOPE_LINK}))
	h.up(i)
	expect.NoError(t, hostnet.AddRoute(half))
	for _, text := range []string{everything, strings.Replace(everything, "[Peer]", "[Peer]\nPersistentKeepalive = 5", 1)} {
		if err := h.Reload(t.Context(), h.open("wg0", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reload: got error %v, want %s", err, want)
		}
	}
}

// TestPartsOfDefaultRouteAreNoticed has routes that replace a default route in one part. Longer ones may be legitimate.
func TestPartsOfDefaultRouteAreNoticed(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, hostnet.AddAddress("u0", netip.MustParsePrefix("fd00:7::2/64")))
	h.up(h.open("wg0", everything))
	for route, want := range map[string]bool{
		"8.0.0.0/7": true, "64.0.0.0/4": true, "220.0.0.0/6": true, "2600::/7": true, "3000::/4": true,
		"11.0.0.0/8": false, "2600::/8": false, "fc00::/7": false, "224.0.0.0/4": false, "fc00::/6": true,
	} {
		r := hostnet.Route{Dst: netip.MustParsePrefix(route), Link: "u0"}
		expect.NoError(t, hostnet.AddRoute(r))
		paths, err := hostnet.OtherPaths([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, "wg0")
		expect.NoError(t, err)
		paths = slices.DeleteFunc(paths, func(p hostnet.OtherPath) bool { return !p.Replaces() })
		if got := len(paths) == 1 && paths[0].Dst == r.Dst; got != want || len(paths) > 1 {
			t.Errorf("%s: got %v, want it to be noticed: %v", route, paths, want)
		}
		expect.NoError(t, hostnet.RemoveRoute(r))
	}
}

// TestUpWarnsOfHooksThatChangeTheTunnel: PostUp takes the interface down, which removes its routes.
func TestUpWarnsOfHooksThatChangeTheTunnel(t *testing.T) {
	if _, err := lookPath("ip"); err != nil {
		t.Skip("needs ip(8)")
	}
	for hook, want := range map[string]string{
		"ip link set %i down":     "after PostUp, it is down",
		"ip address flush dev %i": "after PostUp, address 10.9.0.1/24 is missing",
		"ip link del %i":          "after PostUp, ",
		"true":                    "",
	} {
		h := newHost(t)
		expect.NoError(t, h.Up(t.Context(), h.open("wg0", strings.Replace(basic, "MTU", "PostUp = "+hook+"\nMTU", 1))))
		if got := h.stderr.String(); (want == "") == strings.Contains(got, "after PostUp") || !strings.Contains(got, want) {
			t.Errorf("%s: %q is printed, want %q", hook, got, want)
		}
	}
}

func TestUpWarnsOfEndpointInsideTunnel(t *testing.T) {
	h := newHost(t)
	for ips, want := range map[string]bool{"198.51.100.0/24": true, "10.7.0.0/16": false, "0.0.0.0/0": false} {
		i := h.open("wg0", strings.Replace(basic, "10.7.0.0/16", ips, 1))
		h.stderr.Reset()
		h.up(i)
		if got := strings.Contains(h.stderr.String(), "endpoint 198.51.100.1:51820 are routed into the tunnel itself"); got != want {
			t.Errorf("%s: %q is printed", ips, h.stderr.String())
		}
		expect.NoError(t, h.Down(t.Context(), i))
	}
}

// TestRoutesOfTheLANStandBesideTunnel: they are to private networks, or to a host in the middle of a prefix.
func TestRoutesOfTheLANStandBesideTunnel(t *testing.T) {
	for _, tt := range []struct{ dst, gateway, ips string }{
		{"fc00::/7", "fd55::1", "0.0.0.0/0, ::/0"},
		{"10.0.0.0/8", "192.0.2.1", "0.0.0.0/0, ::/0"},
		{"224.0.0.0/4", "192.0.2.1", "0.0.0.0/0, ::/0"},
		{"203.0.113.128/32", "192.0.2.1", "203.0.113.0/24"}, // an endpoint's
	} {
		h := newHost(t)
		expect.NoError(t, hostnet.AddAddress("u0", netip.MustParsePrefix("fd55::2/64")))
		link, err := netlink.LinkByName("u0")
		expect.NoError(t, err)
		_, dst, err := net.ParseCIDR(tt.dst)
		expect.NoError(t, err)
		expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(tt.gateway), LinkIndex: link.Attrs().Index}))
		i := h.open("wg0", strings.Replace(basic, "10.7.0.0/16, fd07::/48", tt.ips, 1))
		predicted, err := Predict(h.Root, h.RunDir, i)
		expect.NoError(t, err)
		h.up(i)
		expect.NoError(t, h.Reload(t.Context(), i))
		if got := slices.Concat(predicted.Failures, predicted.Warnings); len(got) > 0 || strings.Contains(h.stderr.String(), "leave by") {
			t.Errorf("%s: check finds %q, up and reload print\n%s", tt.dst, got, h.stderr.String())
		}
	}
}
