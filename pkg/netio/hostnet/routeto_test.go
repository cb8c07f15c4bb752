// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMatchRoutesReturnsTheDecidingEntry(t *testing.T) {
	twoUplinks(t)
	addVia(t, "0.0.0.0/0", "192.0.2.1", 0, 0)
	addVia(t, "203.0.113.0/24", "198.51.100.1", 0, 0)
	prohibited := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("203.0.114.0/24")), Type: unix.RTN_PROHIBIT}
	if err := netlink.RouteAdd(prohibited); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"8.8.8.8": "0.0.0.0/0 u0", "192.0.2.9": "192.0.2.0/24 u0", "203.0.113.9": "203.0.113.0/24 w0",
		"192.0.2.2": "", "203.0.114.9": "", "2001:db8::1": "",
	}
	for addr, want := range want {
		got, err := MatchRoutes([]netip.Addr{netip.MustParseAddr(addr)})
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		if m := got[0]; m.Dst.IsValid() {
			l, err := netlink.LinkByIndex(m.LinkIndex)
			if err != nil {
				t.Fatal(err)
			}
			text = m.Dst.String() + " " + l.Attrs().Name
		}
		if text != want {
			t.Errorf("%s: got %q, want %q", addr, text, want)
		}
	}
}

// TestScopeSelectsLinkOfLinkLocalPeer: without the scope, the kernel takes the first link that has link-local addresses.
func TestScopeSelectsLinkOfLinkLocalPeer(t *testing.T) {
	enterNamespace(t)
	for i, device := range []string{"first", "second"} {
		addVeth(t, device, "far-"+device)
		l, err := FindLink(device)
		if err == nil {
			err = SetMTU(device, 1400+i)
		}
		if err != nil {
			t.Fatal(err)
		}
		prefix := &net.IPNet{IP: net.ParseIP("fe80::"), Mask: net.CIDRMask(64, 128)}
		route := &netlink.Route{LinkIndex: l.Index, Dst: prefix, Priority: 1} // the kernel adds its own when it notices the carrier
		if err := netlink.RouteAppend(route); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skipf("needs IPv6: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		peer, scope := netip.MustParseAddr("fe80::2"), uint32(l.Index)
		if e, err := RouteTo(peer, scope, 0); err != nil || e.Device != device {
			t.Errorf("route: got %+v, %v, want %s", e, err, device)
		}
		if name := EgressDeviceName(peer, scope, 0); name != device {
			t.Errorf("device's name: got %s, want %s", name, device)
		}
		if l, err := EgressDevice(peer, scope, 0); err != nil || l.Name != device {
			t.Errorf("device: got %+v, %v, want %s", l, err, device)
		}
		if mtu, err := PathMTU(peer, scope, 0); err != nil || mtu != 1400+i {
			t.Errorf("path MTU: got %d, %v, want %d", mtu, err, 1400+i)
		}
		if _, err := RSSFor(netip.Addr{}, peer, scope, 0); !errors.Is(err, ErrNoRSS) || !strings.Contains(err.Error(), device) {
			t.Errorf("RSS: got %v, want that %s has none", err, device)
		}
	}
}
