// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

const (
	// routeProtocol marks the agent's routes and rules (rtm_protocol; the kernel leaves numbers above RTPROT_STATIC to
	// daemons).
	routeProtocol netlink.RouteProtocol = 82
	// routeTable is the agent's routing table. Routes of a CNI or a cloud's agent in the main table
	// are neither replaced nor used. They apply again once the agent's rule is removed.
	routeTable = 8282
	// rulePriority is before the main table's rule (32766) and after the local one's (0).
	rulePriority = 8282
	// blackholeMetric is the metric of the routes that drop packets while there is no tunnel. A blackhole sends no ICMP error,
	// so that pods' connections survive until the tunnel is back.
	blackholeMetric = 1 << 30
)

// routeKey identifies one of the agent's routes.
type routeKey struct {
	prefix netip.Prefix
	kind   int // RTN_UNICAST: into the tunnel; RTN_BLACKHOLE: drop; RTN_THROW: continue with the next table
}

// SetRoutes implements Network. Routes to nodes do not depend on those to pods.
func (System) SetRoutes(tunnel string, r *Routing) (changes int, err error) {
	index := 0
	l, err := hostnet.FindLink(tunnel)
	if err == nil && l.Up {
		index = l.Index
	} else if err != nil && !errors.Is(err, hostnet.ErrNoLink) {
		return 0, err
	}
	changes, err = applyPodRouting(r, index)
	n, nodesErr := applyNodeRouting(r, index)
	return changes + n, errors.Join(err, nodesErr)
}

// applyPodRouting makes the routes and rules for traffic to pods equal to r.
func applyPodRouting(r *Routing, index int) (changes int, err error) {
	have, err := agentRoutes(routeTable)
	if err != nil {
		return 0, err
	}
	local, err := localPods(r, index)
	if err != nil {
		return 0, err
	}
	want := r.keys(index != 0, local)
	if changes, err = addRoutes(routeTable, r, want, have, index); err != nil {
		return changes, err
	}
	n, err := setRules(want)
	if changes += n; err != nil {
		return changes, err
	}
	n, err = removeRoutesExcept(routeTable, want, have)
	return changes + n, err
}

// applyNodeRouting makes the routes and rules for traffic between nodes equal to r; nil: none.
// Exemptions are there before the rule that they precede, and go after it.
func applyNodeRouting(r *Routing, index int) (changes int, err error) {
	routes := r.nodeRouting()
	for _, family := range hostnet.Families() {
		n, err := setNodeRules(family, r)
		if changes += n; err != nil {
			return changes, err
		}
	}
	have, err := agentRoutes(nodeTable)
	if err != nil {
		return changes, err
	}
	want := routes.keys(index != 0, nil)
	n, err := addRoutes(nodeTable, routes, want, have, index)
	if changes += n; err != nil {
		return changes, err
	}
	n, err = removeRoutesExcept(nodeTable, want, have)
	return changes + n, err
}

// addRoutes adds the routes of a table that are missing in have, and replaces different ones.
func addRoutes(table int, r *Routing, want []routeKey, have map[routeKey]routeAttributes, index int) (changes int, err error) {
	sources, err := ownSources(r)
	if err != nil {
		return 0, err
	}
	for _, k := range want {
		next := k.attributes(index, r.MTU[k.prefix], sources[hostnet.FamilyOf(k.prefix.Addr())])
		if old, ok := have[k]; ok && old == next {
			continue
		}
		changes++
		if err := netlink.RouteReplace(k.route(table, next)); err != nil {
			return changes, fmt.Errorf("adding a route to %s: %w", k.prefix, err)
		}
	}
	return changes, nil
}

// removeRoutesExcept removes the routes in have that are not in want. It changes have.
func removeRoutesExcept(table int, want []routeKey, have map[routeKey]routeAttributes) (changes int, err error) {
	for _, k := range want {
		delete(have, k)
	}
	for k, old := range have {
		changes++
		if err := netlink.RouteDel(k.route(table, old)); err != nil && !errors.Is(err, unix.ESRCH) {
			return changes, fmt.Errorf("removing the route to %s: %w", k.prefix, err)
		}
	}
	return changes, nil
}

// keys returns the wanted routes: exemptions first, then blackholes. In this order, no packet is misrouted while they are
// added. local are exemptions besides r.Exempt.
func (r *Routing) keys(tunnel bool, local []netip.Prefix) (keys []routeKey) {
	if r == nil {
		return nil
	}
	exempt := make(map[netip.Prefix]bool, len(r.Exempt)+len(local))
	keys = make([]routeKey, 0, len(r.Exempt)+len(local)+2*len(r.Routes))
	for _, p := range slices.Concat(r.Exempt, local) {
		if !exempt[p] {
			keys = append(keys, routeKey{p, unix.RTN_THROW})
			exempt[p] = true
		}
	}
	for _, p := range r.Routes {
		if exempt[p] { // the kernel has one route per prefix and metric
			continue
		}
		if !r.Cleartext {
			keys = append(keys, routeKey{p, unix.RTN_BLACKHOLE})
		}
		if tunnel {
			keys = append(keys, routeKey{p, unix.RTN_UNICAST})
		}
	}
	return keys
}

// ownSources returns the first of r.Sources of each address family that the host has.
func ownSources(r *Routing) (map[hostnet.Family]netip.Addr, error) {
	if r == nil || len(r.Sources) == 0 {
		return nil, nil
	}
	own, err := ownAddrs()
	sources := map[hostnet.Family]netip.Addr{}
	for _, a := range r.Sources {
		family := hostnet.FamilyOf(a)
		if _, found := sources[family]; !found && own[a] != nil {
			sources[family] = a
		}
	}
	return sources, err
}

// routeAttributes are the fields in which routes of the same key may differ. Thousands of
// netlink.Routes would take megabytes.
type routeAttributes struct {
	link, mtu, metric int
	source            netip.Addr // from which the host itself sends; invalid: the kernel chooses
}

// attributes returns the wanted route's attributes.
func (k routeKey) attributes(link, mtu int, source netip.Addr) routeAttributes {
	switch k.kind {
	case unix.RTN_BLACKHOLE:
		return routeAttributes{metric: blackholeMetric}
	case unix.RTN_UNICAST:
		return routeAttributes{link: link, mtu: mtu, source: source}
	}
	return routeAttributes{}
}

// attributesOf returns an existing route's attributes. The kernel gives the loopback to routes
// without a device, and a metric to IPv6 routes.
func (k routeKey) attributesOf(r *netlink.Route) routeAttributes {
	a := routeAttributes{metric: r.Priority}
	if k.kind == unix.RTN_UNICAST {
		source, _ := netip.AddrFromSlice(r.Src)
		a.link, a.mtu, a.source = r.LinkIndex, r.MTU, source.Unmap()
	}
	if k.kind != unix.RTN_BLACKHOLE && k.prefix.Addr().Is6() && a.metric == ip6DefaultMetric {
		a.metric = 0
	}
	return a
}

// ip6DefaultMetric is the metric of IPv6 routes for which none is set (IP6_RT_PRIO_USER).
const ip6DefaultMetric = 1024

// route returns the route for netlink.
func (k routeKey) route(table int, a routeAttributes) *netlink.Route {
	r := &netlink.Route{
		Dst: ipNet(k.prefix), Protocol: routeProtocol, Table: table, Type: k.kind, LinkIndex: a.link, MTU: a.mtu, Priority: a.metric, Src: a.source.AsSlice(),
	}
	switch {
	case k.kind == unix.RTN_THROW && k.prefix.Addr().Is4():
		r.Scope = netlink.SCOPE_HOST // a lookup for a gateway takes narrower scopes only, and would skip the route otherwise
	case k.kind == unix.RTN_UNICAST && k.prefix.Addr().Is4():
		r.Scope = netlink.SCOPE_LINK
	}
	return r
}

// agentRoutes returns the routes of this agent and of earlier ones in a table.
func agentRoutes(table int) (map[routeKey]routeAttributes, error) {
	var all map[routeKey]routeAttributes
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		own, err := hostnet.Dump(func() (map[routeKey]routeAttributes, error) { return dumpRoutes(table, family) })
		if err != nil {
			return nil, fmt.Errorf("listing the agent's routes: %w", err)
		}
		if len(all) < len(own) { // the larger map is not copied
			all, own = own, all
		}
		maps.Copy(all, own)
	}
	return all, nil
}

// RouteTypes counts the agent's routes in all of its tables by type (unix.RTN_UNICAST, unix.RTN_BLACKHOLE).
func RouteTypes() (map[int]int, error) {
	types := map[int]int{}
	for _, table := range []int{routeTable, nodeTable} {
		routes, err := agentRoutes(table)
		if err != nil {
			return nil, err
		}
		for k := range routes {
			types[k.kind]++
		}
	}
	return types, nil
}

// dumpRoutes is for hostnet.Dump. It keeps no netlink.Route.
func dumpRoutes(table, family int) (map[routeKey]routeAttributes, error) {
	own := map[routeKey]routeAttributes{}
	filter := &netlink.Route{Protocol: routeProtocol, Table: table}
	err := netlink.RouteListFilteredIter(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
		if r.Dst != nil {
			addr, _ := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			k := routeKey{netip.PrefixFrom(addr.Unmap(), bits), r.Type}
			own[k] = k.attributesOf(&r)
		}
		return true
	})
	return own, err
}

// setRules adds the rule for the agent's table to the address families that have routes, and removes it from the others.
func setRules(want []routeKey) (changes int, err error) {
	for _, family := range hostnet.Families() {
		wanted := false
		for _, k := range want {
			wanted = wanted || hostnet.FamilyOf(k.prefix.Addr()) == family
		}
		n, err := setRule(family, wanted)
		if changes += n; err != nil {
			return changes, err
		}
	}
	return changes, nil
}

func setRule(family hostnet.Family, wanted bool) (changes int, err error) {
	r := netlink.NewRule()
	r.Family, r.Table, r.Priority, r.Protocol = int(family), routeTable, rulePriority, uint8(routeProtocol)
	have, err := hostnet.ListRules(family, &netlink.Rule{Table: routeTable, Priority: rulePriority}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PRIORITY)
	if err != nil {
		return 0, err
	}
	switch there := len(have) > 0; {
	case there == wanted:
		return 0, nil
	case wanted:
		err = netlink.RuleAdd(r)
	default:
		err = netlink.RuleDel(r)
	}
	if err != nil {
		return 0, fmt.Errorf("changing the %s rule for table %d: %w", family, routeTable, err)
	}
	return 1, nil
}
