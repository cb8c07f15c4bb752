// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// EgressDevice returns the link by which packets with that mark leave to a peer. scope is the interface index of a link-local peer, else 0.
// For a VLAN it is the device below, which has the queues. Without a route the error wraps ErrNoRoute.
func EgressDevice(peer netip.Addr, scope, mark uint32) (Link, error) {
	r, err := lookUpRoute(netip.Addr{}, peer, scope, mark)
	if err != nil {
		return Link{}, err
	}
	index := r.LinkIndex
	for range rssDepth {
		var l netlink.Link
		if l, err = linkAt(index); err != nil {
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
