// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netlab"
)

// inNamespace runs f in a network namespace with a device that stands for a tunnel.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	l, err := netlab.New("routes")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := l.Host("h")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

// way tells which device what is for an address leaves by, "" for none.
func way(text string) (string, error) {
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

// addLink makes a device with an address. Its packets go nowhere.
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

func TestTunnelsAddressesAreThoseOfThePodsThatTheNodeHasNow(t *testing.T) {
	inNamespace(t, func() error {
		if err := addLink("tunnel", "10.244.1.0/32"); err != nil { // of an agent before this one
			return err
		}
		for _, c := range []struct {
			pods    []netip.Prefix
			want    []netip.Prefix
			changes int
		}{
			{
				[]netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("2001:db8:7::/64")},
				[]netip.Prefix{netip.MustParsePrefix("10.244.7.0/32"), netip.MustParsePrefix("2001:db8:7::/128")},
				4,
			},
			{[]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.244.9.0/32")}, 3},
			{[]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}, []netip.Prefix{netip.MustParsePrefix("10.244.9.0/32")}, 0},
		} {
			n, err := setInterface("tunnel", 1400, c.pods)
			if err != nil || n != c.changes {
				t.Errorf("%v: %d changes, %v", c.pods, n, err)
			}
			has, err := hostnet.Addresses("tunnel")
			has = slices.DeleteFunc(has, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
			if err != nil || !slices.Equal(has, c.want) {
				t.Errorf("%v: it has %v, %v", c.pods, has, err)
			}
		}
		return nil
	})
}

func TestRoutesOfOthersAreNeitherReplacedNorObeyed(t *testing.T) {
	inNamespace(t, func() error {
		pods := netip.MustParsePrefix("10.244.2.0/24")
		err := errors.Join(addLink("eth9", "192.0.2.1/24"), addLink("tunnel", "10.244.1.0/32"))
		if err != nil {
			return err
		}
		cni := &netlink.Route{Dst: &net.IPNet{IP: pods.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}, Gw: net.ParseIP("192.0.2.2"), Protocol: 99}
		if err := netlink.RouteAdd(cni); err != nil {
			return err
		}
		expect := func(what string, want map[string]string) {
			t.Helper()
			for addr, device := range want {
				if got, err := way(addr); err != nil || got != device {
					t.Errorf("%s: what is for %s leaves by %q, want %q (%v)", what, addr, got, device, err)
				}
			}
		}
		r := &Routing{
			Routes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), pods, netip.MustParsePrefix("192.0.2.0/25")},
			Exempt: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("192.0.2.2/32")},
		}
		set := func(what string, r *Routing, refuse, changed bool) {
			t.Helper()
			n, err := setRouting("tunnel", r, refuse)
			if err != nil || (n > 0) != changed {
				t.Errorf("%s: %d changes, %v", what, n, err)
			}
		}
		set("with a tunnel", r, true, true)
		expect("with a tunnel", map[string]string{"10.244.2.10": "tunnel", "10.244.77.1": "tunnel", "192.0.2.2": "eth9", "192.0.2.9": "tunnel"})
		set("again", r, true, false)
		if err := netlink.RouteReplace(cni); err != nil { // as the CNI does all the time
			return err
		}
		expect("the CNI insists", map[string]string{"10.244.2.10": "tunnel"})
		r.MTU = map[netip.Prefix]int{pods: 1300}
		set("the other end takes less", r, true, true)
		set("again", r, true, false)
		if routes, err := netlink.RouteGet(net.ParseIP("10.244.2.10")); err != nil || routes[0].MTU != 1300 {
			t.Errorf("%v, %v", routes, err)
		}
		l, err := netlink.LinkByName("tunnel")
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(l); err != nil {
			return err
		}
		expect("without the tunnel", map[string]string{"10.244.2.10": "", "10.244.77.1": "", "192.0.2.2": "eth9"})
		set("it is noticed", r, true, false)
		set("cleartext is wanted", r, false, true)
		expect("cleartext is wanted", map[string]string{"10.244.2.10": "eth9"})
		set("refused again", r, true, true)
		set("undone", nil, false, true)
		expect("undone", map[string]string{"10.244.2.10": "eth9", "192.0.2.9": "eth9"})
		set("undone twice", nil, false, false)
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		if len(rules) != 3 {
			t.Errorf("%d rules are left: %v", len(rules), rules)
		}
		return err
	})
}
