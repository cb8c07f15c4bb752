// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// device is a device to which the programs are attached.
type device struct {
	name     string
	index    int
	ethernet bool   // whether its packets begin with an Ethernet header
	gather   Gather // GatherTC or GatherXDP
}

// deviceOf returns a device. It gathers with tc.
func deviceOf(l netlink.Link) device {
	a := l.Attrs()
	return device{name: a.Name, index: a.Index, ethernet: a.EncapType == "ether", gather: GatherTC}
}

// innerKinds are kinds of devices that carry packets inside others, or none to other hosts. Outer packets of a WireGuard do not arrive there, unless a
// route leads to its peer by one: then it is named in the Config.
var innerKinds = []string{
	"wireguard", "tuntap", "dummy", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm",
	"ifb", "nlmon", "netkit", "vcan", "can",
}

// findReceivers adds this host's addresses, and the devices on which it may receive from its peers, whichever device the routes to them name:
// those with an IP address that are no part of another device. A veth with a link-local address alone belongs to a container. refused are
// the indices of devices that cannot have the programs.
func (pl *plan) findReceivers(refused map[int]bool) error {
	links, addresses, err := hostnet.LinkAddresses()
	if err != nil {
		return err
	}
	kinds := map[int]string{}
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
	}
	for _, l := range links {
		a := l.Attrs()
		all := addresses[a.Index]
		pl.addresses = append(pl.addresses, all...)
		global := slices.ContainsFunc(all, func(a netip.Addr) bool { return !a.IsLinkLocalUnicast() })
		part := a.MasterIndex != 0 && kinds[a.MasterIndex] != "vrf"
		switch {
		case part, a.Flags&net.FlagLoopback != 0, slices.Contains(innerKinds, l.Type()), a.Index == pl.devices[0].index, refused[a.Index]:
		case global, len(all) > 0 && l.Type() != "veth":
			pl.devices = append(pl.devices, deviceOf(l))
			pl.report.AlsoOn = append(pl.report.AlsoOn, a.Name)
		}
	}
	return nil
}

// removeGone removes the pins of devices that no longer exist, other than the configured one: nobody attaches to them again by name.
func (p pins) removeGone(configured string) error {
	names, err := p.devices()
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == configured || deviceIndex(name) != 0 {
			continue
		}
		if attached, err := p.isAttached(name, 0); err != nil || attached {
			continue // renamed
		}
		if err := p.detachFrom(name); err != nil {
			return err
		}
	}
	return nil
}
