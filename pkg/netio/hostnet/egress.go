// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// EgressDevice returns the link by which packets with that mark leave to a peer. For a VLAN it is the device below, which
// has the queues. The error wraps ErrNoLink if the link is deleted meanwhile, or is the kernel's when there is no
// route.
func EgressDevice(peer netip.Addr, mark uint32) (Link, error) {
	index, err := routeLink(netip.Addr{}, peer, mark)
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

// HasVLANs reports whether a device has VLANs in this network namespace.
func HasVLANs(index int) (bool, error) {
	all, err := Dump(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("listing the network interfaces: %w", err)
	}
	return slices.ContainsFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		return l.Type() == "vlan" && a.ParentIndex == index && a.NetNsID < 0
	}), nil
}

// EgressDeviceName returns the name of the link by which packets with that mark leave to an address, without following
// stacked links; "" if there is no route.
func EgressDeviceName(to netip.Addr, mark uint32) string {
	index, err := routeLink(netip.Addr{}, to, mark)
	if err != nil {
		return ""
	}
	l, err := Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(index) })
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}
