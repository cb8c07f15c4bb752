// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// inNamespace runs f in a network namespace with a device that stands for a tunnel.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	_, hosts := netlabtest.Hosts(t, "routes", "h")
	if err := hosts[0].Do(f); err != nil {
		t.Fatal(err)
	}
}

// routeTo returns the device that packets to an address leave by, or "" for none.
func routeTo(text string) (string, error) {
	routes, err := netlink.RouteGet(net.ParseIP(text))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENETUNREACH) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", err
	}
	return l.Attrs().Name, nil
}

// addLink adds a veth with an address. The other end discards its packets.
func addLink(name, addr string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	l := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "-far"}
	a, err := netlink.ParseAddr(addr)
	if err = errors.Join(err, netlink.LinkAdd(l)); err != nil {
		return err
	}
	far, err := netlink.LinkByName(l.PeerName)
	return errors.Join(err, netlink.AddrAdd(l, a), netlink.LinkSetUp(l), netlink.LinkSetUp(far))
}

func TestInterfaceAddressesFollowPodCIDRs(t *testing.T) {
	inNamespace(t, func() error {
		err := errors.Join(addLink("tunnel", "10.244.1.0/32"), // left by an earlier agent
			setSysctl("ipv4/conf/all/rp_filter", "0"), setSysctl("ipv4/conf/tunnel/rp_filter", "0"))
		if err != nil {
			return err
		}
		for _, c := range []struct {
			pods    []netip.Prefix
			want    []netip.Prefix
			changes int
		}{
			{
				[]netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("2001:db8:7::/64")},
				[]netip.Prefix{netip.MustParsePrefix("10.244.7.0/32"), netip.MustParsePrefix("2001:db8:7:0:ffff:ffff:ffff:ffff/128")},
				4,
			},
			{[]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.244.9.0/32")}, 3},
			{[]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.244.9.0/32")}, 0},
		} {
			n, err := (System{}).SetInterface("tunnel", 1400, c.pods)
			if err != nil || n != c.changes {
				t.Errorf("pod CIDRs %v: got %d changes, error %v, want %d", c.pods, n, err, c.changes)
			}
			has, err := hostnet.Addresses("tunnel")
			has = slices.DeleteFunc(has, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
			if err != nil || !slices.Equal(has, c.want) {
				t.Errorf("pod CIDRs %v: got addresses %v, error %v, want %v", c.pods, has, err, c.want)
			}
		}
		return nil
	})
}

// TestAnswersOfOtherNodesPassStrictRPFilter: a pod's packet to another node bypasses the tunnel, and the answer comes out of it.
func TestAnswersOfOtherNodesPassStrictRPFilter(t *testing.T) {
	for _, on := range []string{"all", "tunnel"} {
		inNamespace(t, func() error {
			err := errors.Join(addNodeWithTunnel(), setSysctl("ipv4/conf/all/rp_filter", "0"), setSysctl("ipv4/conf/tunnel/rp_filter", "0"),
				setSysctl("ipv4/conf/"+on+"/rp_filter", "1"))
			if err != nil {
				return err
			}
			answer := func() error {
				_, err := netlink.RouteGetWithOptions(net.ParseIP("10.244.1.5"), &netlink.RouteGetOptions{SrcAddr: net.ParseIP("192.0.2.2"), Iif: "tunnel"})
				return err
			}
			if answer() == nil { // EXDEV, on new kernels EINVAL
				t.Errorf("strict on %s: the answer passes before rp_filter is changed", on)
			}
			for _, changes := range []int{1, 0} {
				if n, err := (System{}).SetInterface("tunnel", 1500, []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}); n != changes || err != nil {
					t.Errorf("strict on %s: got %d changes, error %v, want %d", on, n, err, changes)
				}
				if err := answer(); err != nil {
					t.Errorf("strict on %s: another node's answer to a pod is dropped: %v", on, err)
				}
			}
			return nil
		})
	}
}

// TestHostSendsFromItsOwnAddress has no pod address on the tunnel's interface, and one source that the host does not have.
func TestHostSendsFromItsOwnAddress(t *testing.T) {
	inNamespace(t, func() error {
		err := errors.Join(addLink("docker0", "172.17.0.1/16"), addLink("eth9", "192.0.2.1/24"), addAddr("eth9", "2001:db8:9::1/64"), addLink("tunnel", "169.254.1.1/32"))
		if err != nil {
			return err
		}
		r := &Routing{
			Routes:  []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("2001:db8:2::/64")},
			Sources: []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:9::1")},
		}
		for _, changed := range []bool{true, false} {
			if n, err := (System{}).SetRoutes("tunnel", r); err != nil || (n > 0) != changed {
				t.Errorf("got %d changes, error %v, want changes %v", n, err, changed)
			}
		}
		for to, want := range map[string]string{"10.244.2.9": "192.0.2.1", "2001:db8:2::9": "2001:db8:9::1"} {
			routes, err := netlink.RouteGet(net.ParseIP(to))
			if err != nil || !routes[0].Src.Equal(net.ParseIP(want)) {
				t.Errorf("to %s from %v, %v, want %s", to, routes, err, want)
			}
		}
		r.Sources = nil
		if n, err := (System{}).SetRoutes("tunnel", r); err != nil || n != 2 {
			t.Errorf("without sources: %d changes, %v", n, err)
		}
		return nil
	})
}

// routed has the addresses of a host and its tunnel, of one IP version.
type routed struct {
	own, tunnel    string       // with the prefix
	gateway        string       // on the host's link, with routes through it in the main table
	near           netip.Prefix // a part of the link's prefix, with the gateway
	neighbor       string       // in near
	all, pods      netip.Prefix // other nodes' pods: all, and one node's
	ownPods        netip.Prefix // part of all
	inPods, inRest string       // within pods, and within all
}

func TestForeignRoutesAreUntouchedAndIgnored(t *testing.T) {
	for family, c := range map[hostnet.Family]routed{
		hostnet.IPv4: {
			own: "192.0.2.1/24", tunnel: "10.244.1.0/32", gateway: "192.0.2.2", near: netip.MustParsePrefix("192.0.2.0/25"), neighbor: "192.0.2.9",
			all: netip.MustParsePrefix("10.244.0.0/16"), pods: netip.MustParsePrefix("10.244.2.0/24"), ownPods: netip.MustParsePrefix("10.244.1.0/24"),
			inPods: "10.244.2.10", inRest: "10.244.77.1",
		},
		hostnet.IPv6: {
			own: "2001:db8::1/64", tunnel: "2001:db8:244:1::/128", gateway: "2001:db8::2", near: netip.MustParsePrefix("2001:db8::/120"), neighbor: "2001:db8::9",
			all: netip.MustParsePrefix("2001:db8:244::/48"), pods: netip.MustParsePrefix("2001:db8:244:2::/64"), ownPods: netip.MustParsePrefix("2001:db8:244:1::/64"),
			inPods: "2001:db8:244:2::10", inRest: "2001:db8:244:77::1",
		},
	} {
		t.Run(family.String(), func(t *testing.T) { inNamespace(t, func() error { return c.test(t, family) }) })
	}
}

// cniRoute returns a CNI's route in the main table for the same pods.
func (c *routed) cniRoute() *netlink.Route {
	dst := &net.IPNet{IP: c.pods.Addr().AsSlice(), Mask: net.CIDRMask(c.pods.Bits(), c.pods.Addr().BitLen())}
	return &netlink.Route{Dst: dst, Gw: net.ParseIP(c.gateway), Protocol: 99}
}

func (c *routed) routing() *Routing {
	gateway := netip.MustParseAddr(c.gateway)
	return &Routing{
		Routes: []netip.Prefix{c.all, c.pods, c.near},
		Exempt: []netip.Prefix{c.ownPods, netip.PrefixFrom(gateway, gateway.BitLen())},
	}
}

// wantRoutes fails unless packets to the addresses leave by these devices.
func wantRoutes(t *testing.T, what string, want map[string]string) {
	t.Helper()
	for addr, device := range want {
		if got, err := routeTo(addr); err != nil || got != device {
			t.Errorf("%s: packets to %s leave by %q, want %q (%v)", what, addr, got, device, err)
		}
	}
}

// TestRulesOfFamilyThatKernelLacksAreNone: a kernel with ipv6.disable=1 lists no IPv6 rules. This one has no DECnet.
func TestRulesOfFamilyThatKernelLacksAreNone(t *testing.T) {
	inNamespace(t, func() error {
		const lacking = hostnet.Family(unix.AF_DECnet)
		if n, err := setRule(lacking, false); n != 0 || err != nil {
			t.Errorf("removing the rule: got %d changes, error %v, want neither", n, err)
		}
		if n, err := setNodeRules(lacking, nil); n != 0 || err != nil {
			t.Errorf("removing the rules for traffic between nodes: got %d changes, error %v, want neither", n, err)
		}
		if _, err := setRule(lacking, true); !errors.Is(err, unix.EAFNOSUPPORT) {
			t.Errorf("adding the rule: got error %v, want %v", err, unix.EAFNOSUPPORT)
		}
		return nil
	})
}

func (c *routed) test(t *testing.T, family hostnet.Family) error {
	rules, err := netlink.RuleList(int(family))
	cni := c.cniRoute()
	err = errors.Join(err, addLink("eth9", c.own), addLink("tunnel", c.tunnel), netlink.RouteAdd(cni))
	if err != nil {
		return err
	}
	expect := func(what string, want map[string]string) { t.Helper(); wantRoutes(t, what, want) }
	set := func(what string, r *Routing, refuse, changed bool) {
		t.Helper()
		if r != nil {
			r.Cleartext = !refuse
		}
		if n, err := (System{}).SetRoutes("tunnel", r); err != nil || (n > 0) != changed {
			t.Errorf("%s: got %d changes, error %v, want changes %v", what, n, err, changed)
		}
	}
	r := c.routing()
	set("with a tunnel", r, true, true)
	expect("with a tunnel", map[string]string{c.inPods: "tunnel", c.inRest: "tunnel", c.gateway: "eth9", c.neighbor: "tunnel"})
	set("again", r, true, false)
	if err := netlink.RouteReplace(cni); err != nil { // as the CNI does all the time
		return err
	}
	expect("after the CNI replaced its route", map[string]string{c.inPods: "tunnel"})
	r.MTU = map[netip.Prefix]int{c.pods: 1300}
	set("a smaller MTU at the other end", r, true, true)
	set("again", r, true, false)
	if routes, err := netlink.RouteGet(net.ParseIP(c.inPods)); err != nil || routes[0].MTU != 1300 {
		t.Errorf("got %v, error %v, want no error", routes, err)
	}
	if err := hostnet.DeleteLink("tunnel"); err != nil {
		return err
	}
	expect("without the tunnel", map[string]string{c.inPods: "", c.inRest: "", c.gateway: "eth9"})
	set("applied without the tunnel", r, true, false)
	set("cleartext is wanted", r, false, true)
	expect("cleartext is wanted", map[string]string{c.inPods: "eth9"})
	set("refused again", r, true, true)
	set("undone", nil, false, true)
	expect("undone", map[string]string{c.inPods: "eth9", c.neighbor: "eth9"})
	set("undone twice", nil, false, false)
	left, err := netlink.RuleList(int(family))
	if len(left) != len(rules) {
		t.Errorf("got rules %v, want the %d as before", left, len(rules))
	}
	return err
}

func TestExemptPrefixIsNotRouted(t *testing.T) {
	p := netip.MustParsePrefix("10.244.2.0/24")
	r := &Routing{Routes: []netip.Prefix{p}, Exempt: []netip.Prefix{p}}
	if keys := r.keys(true, nil); len(keys) != 1 || keys[0].kind != unix.RTN_THROW {
		t.Errorf("got %+v, want length 1", keys)
	}
}
