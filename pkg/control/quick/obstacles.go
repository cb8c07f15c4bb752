// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Obstacles returns the reasons for which Up would fail on the host with the file system root although the file has no mistake.
// An interface that exists has overcome them.
func Obstacles(root fs.FS, i Interface) (reasons []string, err error) {
	if _, err := hostnet.FindLink(i.Name); err == nil {
		return nil, nil
	}
	conf := &i.File.Interface
	planned := plannedRoutes(root, i)
	prefixes := slices.Clone(conf.Address)
	for _, r := range planned.Routes {
		prefixes = append(prefixes, r.Dst)
	}
	if n := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() }); n >= 0 {
		if err := hostnet.IPv6OfNewLinks(); err != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %v", prefixes[n], err))
		}
	}
	for _, family := range planned.Policy {
		lowest, err := hostnet.LowestPriority(family)
		if err != nil {
			return nil, err
		}
		if lowest < rulePriorities {
			reasons = append(reasons, fmt.Sprintf("no priority is left for %s rules below that of rule %d", family, lowest))
		}
	}
	paths, err := hostnet.OtherPaths(probed(&planned), i.Name)
	for _, p := range paths {
		if text := p.String(); (p.IsWide() || p.Metric <= hostnet.MetricOf(p.Prefix) && p.Route == usedFor(p.Prefix, conf)) && !p.Link.Tunnel && !slices.Contains(reasons, text) {
			reasons = append(reasons, text)
		}
	}
	for _, r := range planned.Routes { // addRoute fails beside the kernel's route for an address, and addRoutes does not
		if r.Name != "" && r.table() == hostnet.MainTable && r.Dst.Addr().Is4() && slices.ContainsFunc(conf.Address, func(a netip.Prefix) bool { return a.Masked() == r.Dst && !a.IsSingleIP() }) {
			reasons = append(reasons, fmt.Sprintf("table %s has a route to %s for the Address", r.Name, r.Dst))
		}
	}
	return reasons, err
}

// usedFor returns the prefix of the main table's route to p: with Table = auto that of an address, if it has p, and none for a default route.
func usedFor(p netip.Prefix, conf *conffile.Interface) netip.Prefix {
	if isAuto(conf.Table) && p.Bits() == 0 {
		return netip.Prefix{}
	}
	for _, a := range conf.Address {
		if isAuto(conf.Table) && hasRoute(a) && a.Bits() <= p.Bits() && a.Masked().Contains(p.Addr()) {
			return a.Masked()
		}
	}
	return p
}

// hasRoute reports whether the kernel makes a route for an address: it makes none to 0.0.0.0 (fib_add_ifaddr).
func hasRoute(a netip.Prefix) bool { return a.Addr().Is6() || a.Masked().Addr().As4()[0] != 0 }

// plannedRoutes returns the routes and rules that Up plans: none for an unknown table, of which the caller has another warning.
func plannedRoutes(root fs.FS, i Interface) settings {
	conf, facts := &i.File.Interface, Facts{FreeTable: firstTable}
	if !isAuto(conf.Table) {
		var err error
		if facts.Table, err = hostnet.TableNumber(root, conf.Table); err != nil {
			return settings{}
		}
	}
	dev, _ := i.File.Device(context.Background(), func(context.Context, string) (config.Endpoint, error) { return config.Endpoint{}, nil }) // only names fail
	return settingsOf(conf, planRoutes(i, dev, facts))
}

// LoopingPrefix returns the AllowedIPs whose route takes messages to an endpoint into the tunnel itself; the zero Prefix if there is none. Policy
// routing keeps messages out of a default route, but not out of parts of one, such as 128.0.0.0/1.
func LoopingPrefix(root fs.FS, i Interface, endpoint netip.Addr) (longest netip.Prefix, err error) {
	conf := &i.File.Interface
	mentionsRoutes := func(command string) bool {
		return strings.Contains(command, "route") || strings.Contains(command, "rule")
	}
	if conf.FwMark != nil && *conf.FwMark != 0 || slices.ContainsFunc(slices.Concat(conf.PreUp, conf.PostUp), mentionsRoutes) {
		return longest, nil // they have a way of their own
	}
	endpoint = endpoint.Unmap()
	if hostnet.IsLocal(endpoint) || endpoint.IsLinkLocalUnicast() { // whose scope is the route
		return longest, nil
	}
	matches, err := hostnet.MatchRoutes([]netip.Addr{endpoint})
	if err != nil {
		return longest, err
	}
	host := matches[0].Dst
	if own, err := hostnet.FindLink(i.Name); err == nil && matches[0].Link == own.Index || host.Bits() == 0 {
		host = netip.Prefix{} // the tunnel's, or one that the tunnel's replaces
	}
	for _, r := range plannedRoutes(root, i).Routes {
		if r.table() == hostnet.MainTable && r.Dst.Contains(endpoint) && r.Dst.Bits() > max(longest.Bits(), host.Bits()) {
			longest = r.Dst
		}
	}
	return longest, nil
}

// rulePriorities is the number of priorities that the rules of a default route need.
const rulePriorities = 2
