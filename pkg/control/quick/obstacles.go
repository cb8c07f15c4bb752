// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"net/netip"
	"slices"

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
	}
	return reasons, nil
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
