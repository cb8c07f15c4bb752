// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestEgressDeviceSkipsVLANs(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "near", "far")
	if err := AddAddress("near", netip.MustParsePrefix("192.0.2.2/24")); err != nil {
		t.Fatal(err)
	}
	near, err := FindLink("near")
	if err != nil {
		t.Fatal(err)
	}
	vlan := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "near.7", ParentIndex: near.Index}, VlanId: 7}
	if err := netlink.LinkAdd(vlan); err != nil {
		t.Skipf("needs VLAN links: %v", err)
	}
	mustLinkUp(t, "near.7")
	if err := AddAddress("near.7", netip.MustParsePrefix("198.51.100.2/24")); err != nil {
		t.Fatal(err)
	}
	for _, peer := range []string{"192.0.2.9", "::ffff:192.0.2.9", "198.51.100.9"} {
		if l, err := EgressDevice(netip.MustParseAddr(peer), 0, 0); err != nil || l.Name != "near" {
			t.Errorf("towards %s: got %+v, error %v, want no error", peer, l, err)
		}
	}
	for to, want := range map[string]string{
		"192.0.2.9": "near", "::ffff:192.0.2.9": "near", "198.51.100.9": "near.7", "203.0.113.1": "", "127.0.0.1": "lo",
	} {
		if got := EgressDeviceName(netip.MustParseAddr(to), 0, 0); got != want {
			t.Errorf("towards %s: got %q, want %q", to, got, want)
		}
	}
	if got := EgressDeviceName(netip.Addr{}, 0, 0); got != "" {
		t.Errorf("towards nothing: got %q, want %q", got, "")
	}
	for _, peer := range []netip.Addr{{}, netip.MustParseAddr("203.0.113.1")} {
		if l, err := EgressDevice(peer, 0, 0); err == nil {
			t.Errorf("towards %s: %+v", peer, l)
		}
	}
}

func TestDriverNameIsRead(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "near", "far")
	if name, err := Driver("near"); err != nil || name != "veth" {
		t.Errorf("got %q, error %v, want %q, no error", name, err, "veth")
	}
	for _, device := range []string{"missing", "a-name-that-is-much-too-long"} {
		if _, err := Driver(device); !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: got error %v, want %v", device, err, unix.ENODEV)
		}
	}
}
