// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Egress is how packets to an address leave.
type Egress struct {
	Device  string
	Source  netip.Addr // invalid if the route has none
	Gateway netip.Addr // invalid for an address on the link
}

// RouteTo looks up how packets with a mark leave to an address, as `ip route get` does. scope is the interface index of a link-local
// address, else 0. Without a route the error wraps ErrNoRoute.
func RouteTo(to netip.Addr, scope, mark uint32) (Egress, error) {
	options := netlink.RouteGetOptions{OifIndex: int(scope), Mark: mark}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteGetWithOptions(to.Unmap().WithZone("").AsSlice(), &options)
	})
	if err == nil && len(routes) == 0 || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		err = ErrNoRoute
	}
	if err != nil {
		return Egress{}, fmt.Errorf("looking up the route to %s: %w", to, err)
	}
	l, err := Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(routes[0].LinkIndex) })
	if err != nil {
		return Egress{}, fmt.Errorf("finding the link of the route to %s: %w", to, err)
	}
	e := Egress{Device: l.Attrs().Name}
	e.Source, _ = netip.AddrFromSlice(routes[0].Src)
	e.Gateway, _ = netip.AddrFromSlice(routes[0].Gw)
	e.Source, e.Gateway = e.Source.Unmap(), e.Gateway.Unmap()
	return e, nil
}
