// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoRoute is wrapped by the error for an unreachable destination.
var ErrNoRoute = errors.New("no route")

// PathMTU returns the MTU (bytes) towards a destination of packets with a mark: the route's MTU, including a learned path MTU, or else the
// link's. scope is the interface index of a link-local destination, else 0.
func PathMTU(dst netip.Addr, scope, mark uint32) (int, error) {
	r, err := lookUpRoute(netip.Addr{}, dst, scope, mark)
	if err != nil {
		return 0, err
	}
	return routeMTU(&r)
}

// RouteMTU returns the MTU of RouteFrom.
func RouteMTU(src, dst netip.Addr, scope, mark uint32) (int, error) {
	p, err := RouteFrom(src, dst, scope, mark)
	return p.MTU, err
}

// Path is how packets leave.
type Path struct {
	// MTU in bytes is the MTU that is configured for the route, or else the smallest of the links.
	// Over IPv6 it is no more than router advertisements permit. It takes no notice of path MTUs
	// that the kernel has learned from ICMP, which anybody can forge.
	MTU   int
	Links []int // interface indexes of the next hops
	// HasSource reports whether the route is the one of packets from the source address.
	HasSource bool
	// Hops describes the source address that routing chooses, links and gateways. Two paths with equal Hops are one.
	Hops string
}

// RouteFrom looks up the route from a local address to a destination for packets with a mark. If
// src is zero, or an address that the host does not have, routing chooses the address. scope is
// the interface index of a link-local destination, else 0.
func RouteFrom(src, dst netip.Addr, scope, mark uint32) (p Path, err error) {
	o := netlink.RouteGetOptions{OifIndex: int(scope), Mark: mark, FIBMatch: true}
	to := dst.WithZone("").AsSlice()
	var routes []netlink.Route
	err = error(unix.EINVAL)
	if src.IsValid() && src.Is4() == dst.Is4() {
		from := o
		from.SrcAddr = src.WithZone("").AsSlice()
		if routes, err = netlink.RouteGetWithOptions(to, &from); err == nil && len(routes) > 0 {
			p.HasSource = src.Is4() || IsLocal(src)
		}
	}
	if err != nil {
		routes, err = netlink.RouteGetWithOptions(to, &o)
	}
	if err == nil && len(routes) == 0 {
		err = ErrNoRoute
	}
	if err != nil {
		return Path{}, fmt.Errorf("looking up the route to %s: %w", dst, err)
	}
	r := &routes[0]
	p.Links, p.Hops = nextHopLinks(r), hops(r)
	p.MTU, err = routeMTU(r)
	if err == nil && dst.Is6() {
		p.MTU, err = limitedByAdvertisement(p.MTU, r)
	}
	return p, err
}

// hops is Path.Hops of a route.
func hops(r *netlink.Route) string {
	if len(r.MultiPath) == 0 {
		return fmt.Sprint(r.Src, r.LinkIndex, r.Gw, r.Via)
	}
	b := fmt.Append(nil, r.Src)
	for _, h := range r.MultiPath {
		b = fmt.Append(b, h.LinkIndex, h.Gw, h.Via)
	}
	return string(b)
}

// IsLocal reports whether this host has an address. The kernel looks up routes from IPv6 addresses that it does not have.
func IsLocal(addr netip.Addr) bool {
	routes, err := netlink.RouteGetWithOptions(addr.WithZone("").AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// limitedByAdvertisement returns the MTU of an IPv6 route, or less if router advertisements on its links do not permit that.
func limitedByAdvertisement(mtu int, r *netlink.Route) (int, error) {
	for _, index := range nextHopLinks(r) {
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return 0, fmt.Errorf("finding the device of a route: %w", err)
		}
		if n := IPv6MTU(l.Attrs().Name); n > 0 {
			mtu = min(mtu, n)
		}
	}
	return mtu, nil
}

// DefaultRouteMTU returns the MTU (bytes) of the best IPv4 default route in the main table. If
// there is none, it takes the best IPv6 default route. Without any, the error is ErrNoRoute.
func DefaultRouteMTU() (int, error) {
	for _, family := range Families() {
		best, err := defaultRoute(family)
		if err != nil {
			return 0, err
		}
		if best != nil {
			return routeMTU(best)
		}
	}
	return 0, fmt.Errorf("looking up the default route: %w", ErrNoRoute)
}

// DefaultRouteDevice returns the device of the best default route in the main table, or of its
// first next hop. It is empty if there is none.
func DefaultRouteDevice(family Family) string {
	best, err := defaultRoute(family)
	if err != nil || best == nil {
		return ""
	}
	l, err := netlink.LinkByIndex(nextHopLinks(best)[0])
	if err != nil { // removed meanwhile
		return ""
	}
	return l.Attrs().Name
}

// defaultRoute returns the best default route in the main table, or nil.
func defaultRoute(family Family) (best *netlink.Route, err error) {
	routes, err := listRoutes(family, MainTable)
	for i := range routes {
		if isDefault(&routes[i]) && (best == nil || routes[i].Priority < best.Priority) {
			best = &routes[i]
		}
	}
	return best, err
}

// isDefault reports whether r is a unicast default route. `unreachable default` is not.
func isDefault(r *netlink.Route) bool {
	return (r.Dst == nil || prefixOf(r.Dst).Bits() == 0) && r.Type == unix.RTN_UNICAST
}

// routeMTU returns the smallest MTU of a route's next hops. Most routes have one.
func routeMTU(r *netlink.Route) (int, error) {
	if r.MTU > 0 {
		return r.MTU, nil
	}
	mtu := 0
	for _, index := range nextHopLinks(r) {
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return 0, fmt.Errorf("finding the device of a route: %w", err)
		}
		if m := l.Attrs().MTU; mtu == 0 || m < mtu {
			mtu = m
		}
	}
	return mtu, nil
}

// nextHopLinks returns the interface indexes of a route's next hops.
func nextHopLinks(r *netlink.Route) []int {
	if len(r.MultiPath) == 0 {
		return []int{r.LinkIndex}
	}
	indexes := make([]int, len(r.MultiPath))
	for i, hop := range r.MultiPath {
		indexes[i] = hop.LinkIndex
	}
	return indexes
}
