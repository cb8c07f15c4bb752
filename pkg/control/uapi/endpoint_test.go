// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// TestNumericDeviceNameIsNoIndex has a device named "1", the index of lo. The control socket's clients write an index there.
func TestNumericDeviceNameIsNoIndex(t *testing.T) {
	namespace.Enter(t)
	device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "1"}, PeerName: "far"}
	if err := netlink.LinkAdd(device); err != nil {
		t.Skipf("needs veth links: %v", err)
	}
	l, err := netlink.LinkByName("1")
	if err != nil {
		t.Fatal(err)
	}
	named := uint32(l.Attrs().Index)
	for zone, want := range map[string]uint32{"1": named, "lo": 1, "77": 77} {
		to, err := uapi.NewEndpoint(netip.MustParseAddrPort("[fe80::2%" + zone + "]:7"))
		if err != nil || to.Scope != want {
			t.Errorf("zone %s: got %+v, %v, want scope %d", zone, to, err, want)
		}
	}
	set, err := uapi.ParseSet(strings.NewReader("public_key=" + strings.Repeat("0a", 32) + "\nendpoint=[fe80::2%1]:7\n"))
	if err != nil || set.Peers[0].Endpoint.Scope != 1 {
		t.Errorf("control socket: got %+v, %v, want scope 1", set, err)
	}
}
