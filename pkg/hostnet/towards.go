// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Towards returns the link that packets with that mark to a peer leave by; of a VLAN, the device below it, which has the queues.
// Errors are ErrNoLink if it goes away meanwhile, or the kernel's when there is no route.
func Towards(peer netip.Addr, mark uint32) (Link, error) {
	index, err := linkTowards(netip.Addr{}, peer, mark)
	for depth := 0; err == nil && depth < rssDepth; depth++ {
		var l netlink.Link
		if l, err = Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(index) }); err != nil {
			break
		}
		a := l.Attrs()
		if l.Type() != "vlan" || a.ParentIndex == 0 || a.NetNsID >= 0 {
			return linkOf(l), nil
		}
		index = a.ParentIndex
	}
	if err == nil {
		err = ErrNoLink
	}
	return Link{}, fmt.Errorf("finding the device towards %s: %w", peer, err)
}

// HasVLANs tells whether VLANs of this network namespace are upon a device.
func HasVLANs(index int) (bool, error) {
	all, err := Dump(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("listing links: %w", err)
	}
	return slices.ContainsFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		return l.Type() == "vlan" && a.ParentIndex == index && a.NetNsID < 0
	}), nil
}

// DeviceTowards names the link that packets with that mark to an address leave by, whatever stands below it; "" where there
// is no route.
func DeviceTowards(to netip.Addr, mark uint32) string {
	index, err := linkTowards(netip.Addr{}, to, mark)
	if err != nil {
		return ""
	}
	l, err := Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(index) })
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}
