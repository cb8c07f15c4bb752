// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
	l, err := linkAt(r.LinkIndex)
	if err != nil {
		return Egress{}, fmt.Errorf("finding the link of the route to %s: %w", to, err)
	}
	e := Egress{Device: l.Attrs().Name}
	e.Source, _ = netip.AddrFromSlice(r.Src)
	e.Gateway, _ = netip.AddrFromSlice(r.Gw)
	e.Source, e.Gateway = e.Source.Unmap(), e.Gateway.Unmap()
	return e, nil
}

// Match is the routing table entry that decides where packets leave.
type Match struct {
	Dst         netip.Prefix
	LinkIndex   int // of the first of several next hops
	Metric      int
	Table       uint32
	Gateway     bool
	Unreachable bool // the host has no route, or it refuses packets
	Local       bool // the address is this host's
}

// MatchRoutes looks up the entry for packets without a mark to each address, as `ip route get
// fibmatch` does. Dst is invalid for an address whose packets leave by no link.
func MatchRoutes(addrs []netip.Addr) ([]Match, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE) // one socket for thousands of addresses
	if err != nil {
		return nil, fmt.Errorf("looking up routes: %w", err)
	}
	defer h.Close()
	matches := make([]Match, len(addrs))
	for i, addr := range addrs {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return h.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		})
		switch {
		case isUnroutable(err):
			matches[i].Unreachable = true
		case err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL:
			matches[i].Local = true
		case err != nil:
			return nil, fmt.Errorf("looking up the route to %s: %w", addr, err)
		case len(routes) > 0 && routes[0].Type == unix.RTN_UNICAST: // not an address of this host
			r := &routes[0]
			gateway := r.Gw != nil || r.Via != nil || slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return hop.Gw != nil || hop.Via != nil })
			matches[i] = Match{matchedPrefix(r, addr), nextHopLinks(r)[0], r.Priority, uint32(r.Table), gateway, false, false}
		}
	}
	return matches, nil
}

// isUnroutable reports whether the kernel has no route to an address, or a route that is
// unreachable, prohibited or a blackhole.
func isUnroutable(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) })
}

// matchedPrefix returns the destination of a route to an address. The kernel omits the destination
// of a default route.
func matchedPrefix(r *netlink.Route, addr netip.Addr) netip.Prefix {
	if dst := prefixOf(r.Dst); dst.IsValid() {
		return dst
	}
	return netip.PrefixFrom(addr, 0).Masked()
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
