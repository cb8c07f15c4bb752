// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestRemoveRouteKeepsTheKernelsRoute(t *testing.T) {
	twoUplinks(t)
	addVia(t, "203.0.113.0/24", "192.0.2.1", 0, 0) // has a gateway
	ours := Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "u0", Table: MainTable}
	other := Route{Dst: netip.MustParsePrefix("2001:db8::/32"), Link: "u0", Table: 4711}
	expect.NoError(t, AddRoute(ours))
	expect.NoError(t, AddRoute(other))
	for _, want := range [][]Route{{ours, other}, {other}} {
		got, connected, err := LinkRoutes("u0")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, error %v, want %v", got, err, want)
		}
		if !slices.Contains(connected, netip.MustParsePrefix("192.0.2.0/24")) || slices.Contains(connected, ours.Dst) {
			t.Errorf("got the kernel's own %v, want 192.0.2.0/24 alone of IPv4", connected)
		}
		expect.NoError(t, RemoveRoute(ours))
	}
	expect.NoError(t, RemoveRoute(Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: "u0"}))
	if mtu, err := PathMTU(netip.MustParseAddr("192.0.2.9"), 0, 0); err != nil || mtu != 1400 {
		t.Errorf("the connected route: got MTU %d, error %v, want 1400, no error", mtu, err)
	}
}
