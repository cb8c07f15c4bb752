// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestDeviceKindsAreAcceptedOrRefused names link types as the kernel's ARPHRD constants and `ip link` do.
func TestDeviceKindsAreAcceptedOrRefused(t *testing.T) {
	link := func(kind, encap string) netlink.Link {
		return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "d", EncapType: encap}, LinkType: kind}
	}
	ipvlan := func(mode netlink.IPVlanMode) netlink.Link {
		return &netlink.IPVlan{LinkAttrs: netlink.LinkAttrs{Name: "d", EncapType: "ether"}, Mode: mode}
	}
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "d", EncapType: "loopback", Flags: net.FlagLoopback}}
	for _, tt := range []struct {
		link netlink.Link
		want string // of the error
	}{
		{link("device", "ether"), ""},
		{link("vlan", "ether"), ""},
		{link("bond", "ether"), ""},
		{link("dummy", "ether"), ""},
		{link("tuntap", "none"), ""},
		{link("netkit", "none"), ""},
		{link("device", "ppp"), ""},
		{ipvlan(netlink.IPVLAN_MODE_L2), ""},
		{ipvlan(netlink.IPVLAN_MODE_L3), "attach to the device below"},
		{ipvlan(netlink.IPVLAN_MODE_L3S), "attach to the device below"},
		{link("device", "infiniband"), "link/infiniband"},
		{link("ipoib", "infiniband"), "link/infiniband"},
		{link("ipip", "ipip"), "link/ipip"},
		{link("gre", "gre"), "link/gre"},
		{link("sit", "sit"), "link/sit"},
		{link("device", ""), "link/"},
		{link("wireguard", "none"), "is a WireGuard device"},
		{lo, "is the loopback device"},
	} {
		err := CheckDevice(tt.link)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, link/%s: got error %v, want %q", tt.link.Type(), tt.link.Attrs().EncapType, err, tt.want)
		}
	}
}

// addLink adds a device with an address above here's, and skips the test where the kernel cannot.
func (s *side) addLink(l netlink.Link, address string) {
	s.r.Helper()
	var unable error
	s.do(func() error {
		parent, err := netlink.LinkByName(s.device)
		if err != nil {
			return err
		}
		l.Attrs().ParentIndex = parent.Attrs().Index
		if unable = netlink.LinkAdd(l); unable != nil {
			return nil
		}
		return nil
	})
	if errors.Is(unable, unix.EOPNOTSUPP) {
		s.r.Skipf("needs a kernel with devices of type %s", l.Type())
	}
	expect.NoError(s.r, errors.Join(unable, s.lab.SetUp(l.Attrs().Name, 1500, netip.MustParsePrefix(address))))
}

// TestIPvlanIsAttachedInLayer2ModeAlone has an ipvlan device, as the one that is named and as a further one.
func TestIPvlanIsAttachedInLayer2ModeAlone(t *testing.T) {
	for name, mode := range map[string]netlink.IPVlanMode{"l2": netlink.IPVLAN_MODE_L2, "l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "upper"
			r.here.addLink(&netlink.IPVlan{LinkAttrs: attrs, Mode: mode}, "10.1.0.1/24")
			accepted := mode == netlink.IPVLAN_MODE_L2
			if report := r.here.attach(r.here.config()); slices.Contains(report.AlsoOn, "upper") != accepted || len(report.NotOn) > 0 {
				t.Errorf("got AlsoOn %q, NotOn %q, want upper in AlsoOn: %v", report.AlsoOn, report.NotOn, accepted)
			}
			r.here.detach(0)
			cfg := r.here.config()
			cfg.Device = "upper"
			if _, err := r.here.try(cfg); (err == nil) != accepted {
				t.Errorf("named: got error %v, want none: %v", err, accepted)
			}
		})
	}
}
