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
		if mtu, err := PathMTU(peer, scope); err != nil || mtu != 1400+i {
			t.Errorf("path MTU: got %d, %v, want %d", mtu, err, 1400+i)
		}
		if _, err := RSSFor(netip.Addr{}, peer, scope, 0); !errors.Is(err, ErrNoRSS) || !strings.Contains(err.Error(), device) {
			t.Errorf("RSS: got %v, want that %s has none", err, device)
		}
	}
}
