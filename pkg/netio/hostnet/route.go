// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MainTable is the number of the main routing table.
const MainTable uint32 = unix.RT_TABLE_MAIN

// Route is a route to a prefix over a link, without a gateway.
type Route struct {
	Dst   netip.Prefix
	Link  string
	Table uint32 // 0 means MainTable
}

// AddRoute adds a route as `ip route add DST dev LINK table TABLE` does. An existing route is syscall.EEXIST.
func AddRoute(r Route) error {
	return r.add("adding", netlink.RouteAdd, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
}

// AppendRoute adds a route as `ip route append` does: beside another to the same prefix, such as
// an address's route, which stays in use.
func AppendRoute(r Route) error {
	return r.add("appending", netlink.RouteAppend, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
}

// RemoveRoute removes a route that AddRoute or AppendRoute has added. A missing route is no error.
func RemoveRoute(r Route) error {
	return onLink(r.Link, func(l netlink.Link) (err error) {
		if r.Dst.Addr().Is4In6() {
			err = changeMappedRoute(l, &r, unix.RTM_DELROUTE, 0)
		} else {
			route := r.over(l)
			route.Protocol = unix.RTPROT_BOOT // as they have it; the kernel's own route to the same prefix stays
			err = netlink.RouteDel(route)
		}
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}, "removing route %s to %s", r.Dst, r.Link)
}

// add adds the route with the library's function, or with these flags.
func (r *Route) add(doing string, add func(*netlink.Route) error, flags int) error {
	return onLink(r.Link, func(l netlink.Link) error {
		if r.Dst.Addr().Is4In6() {
			return namingSysctl(changeMappedRoute(l, r, unix.RTM_NEWROUTE, flags), r.Link, r.Dst)
		}
		return namingSysctl(add(r.over(l)), r.Link, r.Dst)
	}, "%s route %s to %s", doing, r.Dst, r.Link)
}

func (r *Route) over(l netlink.Link) *netlink.Route {
	return &netlink.Route{Dst: ipNet(r.Dst), LinkIndex: l.Attrs().Index, Table: int(r.Table), Scope: scope(r.Dst.Addr())}
}

// LinkRoutes lists the routes over a link. added are the routes in all tables that are as AddRoute
// adds them. connected are the prefixes of routes that the kernel has made in the main table, for
// addresses.
func LinkRoutes(name string) (added []Route, connected []netip.Prefix, err error) {
	l, err := find(name)
	if err != nil {
		return nil, nil, fmt.Errorf("listing the routes of %s: %w", name, err)
	}
	filter := &netlink.Route{LinkIndex: l.Attrs().Index, Type: unix.RTN_UNICAST}
	for _, family := range Families() {
		all, err := Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(int(family), filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("listing the %s routes of %s: %w", family, name, err)
		}
		for i := range all {
			r := &all[i]
			switch dst := prefixOf(r.Dst); {
			case !dst.IsValid() || r.Gw != nil:
			case r.Protocol == unix.RTPROT_BOOT:
				added = append(added, Route{Dst: dst, Link: name, Table: uint32(r.Table)})
			case r.Protocol == unix.RTPROT_KERNEL && r.Table == unix.RT_TABLE_MAIN:
				connected = append(connected, dst)
			}
		}
	}
	return added, connected, nil
}

// scope returns the scope of a route without a gateway: link for IPv4; IPv6 has no scopes (as in iproute2).
func scope(dst netip.Addr) netlink.Scope {
	if dst.Is4() {
		return netlink.SCOPE_LINK
	}
	return netlink.SCOPE_UNIVERSE
}

// MetricOf returns the metric that the kernel gives to a route of AddRoute (IP6_RT_PRIO_USER).
func MetricOf(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1024
}

// TableEmpty reports whether a routing table has no routes, of either family.
func TableEmpty(table uint32) (bool, error) {
	for _, family := range Families() {
		routes, err := listRoutes(family, table)
		if err != nil {
			return false, err
		}
		if len(routes) > 0 {
			return false, nil
		}
	}
	return true, nil
}

func listRoutes(family Family, table uint32) ([]netlink.Route, error) {
	filter := &netlink.Route{Table: int(table)}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(int(family), filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing the %s routes of table %d: %w", family, table, err)
	}
	return routes, nil
}
