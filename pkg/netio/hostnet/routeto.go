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
	r, err := lookUpRoute(netip.Addr{}, to, scope, mark)
	if err != nil {
		return Egress{}, err
	}
	l, err := Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(r.LinkIndex) })
	if err != nil {
		return Egress{}, fmt.Errorf("finding the link of the route to %s: %w", to, err)
	}
	e := Egress{Device: l.Attrs().Name}
	e.Source, _ = netip.AddrFromSlice(r.Src)
	e.Gateway, _ = netip.AddrFromSlice(r.Gw)
	e.Source, e.Gateway = e.Source.Unmap(), e.Gateway.Unmap()
	return e, nil
}

// EgressDeviceName returns the Device of RouteTo, "" if there is no route.
func EgressDeviceName(to netip.Addr, scope, mark uint32) string {
	e, _ := RouteTo(to, scope, mark)
	return e.Device
}

// lookUpRoute looks up the route of packets with a mark from a local address, which matches any if it is invalid or unspecified. The zone
// of an address is given by scope alone, as in underlay.Endpoint. Without a route the error wraps ErrNoRoute.
func lookUpRoute(local, to netip.Addr, scope, mark uint32) (r netlink.Route, err error) {
	if !to.IsValid() {
		return r, errors.New("looking up a route: no address")
	}
	options := netlink.RouteGetOptions{OifIndex: int(scope), Mark: mark}
	if local = local.Unmap(); local.IsValid() && !local.IsUnspecified() {
		options.SrcAddr = local.AsSlice()
	}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteGetWithOptions(to.Unmap().AsSlice(), &options)
	})
	if err == nil && len(routes) == 0 || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		err = ErrNoRoute
	}
	if err != nil {
		return r, fmt.Errorf("looking up the route to %s: %w", to, err)
	}
	return routes[0], nil
}
