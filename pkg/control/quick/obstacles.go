// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// Obstacles returns the reasons for which Up would fail on this host although the file has no mistake.
// An interface that exists has overcome them.
func Obstacles(i Interface) (reasons []string, err error) {
	if _, err := hostnet.FindLink(i.Name); err == nil {
		return nil, nil
	}
	prefixes := slices.Concat(i.File.Interface.Address, routedPrefixes(i.File))
	if n := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() }); n >= 0 {
		if err := hostnet.IPv6OfNewLinks(); err != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %v", prefixes[n], err))
		}
	}
	for _, family := range hostnet.Families() {
		isDefault := func(p netip.Prefix) bool { return p.Bits() == 0 && hostnet.FamilyOf(p.Addr()) == family }
		if !isAuto(i.File.Interface.Table) || !slices.ContainsFunc(prefixes, isDefault) {
			continue
		}
		lowest, err := hostnet.LowestPriority(family)
		if err != nil {
			return nil, err
		}
		if lowest < rulePriorities {
			reasons = append(reasons, fmt.Sprintf("no priority is left for %s rules below that of rule %d", family, lowest))
		}
		defaults := prefixes[slices.IndexFunc(prefixes, isDefault):][:1]
		paths, err := hostnet.WidePaths(defaults, i.Name)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if !p.IntoTunnel() {
				reasons = append(reasons, p.String())
			}
		}
	}
	return reasons, nil
}

// LoopingPrefix returns the AllowedIPs whose route takes messages to an endpoint into the tunnel itself; the zero Prefix if there is none. Policy
// routing keeps messages out of a default route, but not out of parts of one, such as 128.0.0.0/1.
func LoopingPrefix(i Interface, endpoint netip.Addr) (netip.Prefix, error) {
	endpoint = endpoint.Unmap()
	if hostnet.IsLocal(endpoint) || endpoint.IsLinkLocalUnicast() { // whose scope is the route
		return netip.Prefix{}, nil
	}
	matches, err := hostnet.MatchRoutes([]netip.Addr{endpoint})
	if err != nil {
		return netip.Prefix{}, err
	}
	host := matches[0].Dst
	if own, err := hostnet.FindLink(i.Name); err == nil && matches[0].Link == own.Index {
		host = netip.Prefix{}
	}
	return loopingPrefix(i.File, endpoint, host), nil
}

// loopingPrefix is LoopingPrefix for a host whose route to the endpoint is that to a prefix. Files with a mark or with hooks for routes have a way of
// their own.
func loopingPrefix(f *conffile.File, endpoint netip.Addr, host netip.Prefix) (longest netip.Prefix) {
	conf := &f.Interface
	mentionsRoutes := func(command string) bool {
		return strings.Contains(command, "route") || strings.Contains(command, "rule")
	}
	if !isAuto(conf.Table) || conf.FwMark != nil && *conf.FwMark != 0 || slices.ContainsFunc(slices.Concat(conf.PreUp, conf.PostUp), mentionsRoutes) {
		return longest
	}
	for _, p := range routedPrefixes(f) {
		if p.Contains(endpoint) && p.Bits() > max(longest.Bits(), host.Bits(), 0) {
			longest = p
		}
	}
	return longest
}

// rulePriorities is the number of priorities that the rules of a default route need.
const rulePriorities = 2

// routedPrefixes returns the AllowedIPs that get a route.
func routedPrefixes(f *conffile.File) (prefixes []netip.Prefix) {
	if f.Interface.Table == tableOff {
		return nil
	}
	for i := range f.Peers {
		for _, a := range f.Peers[i].AllowedIPs {
			if !a.Remove {
				prefixes = append(prefixes, a.Prefix)
			}
		}
	}
	return prefixes
}
