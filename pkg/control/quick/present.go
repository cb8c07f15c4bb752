// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// present is the configuration of an interface that the kernel reports.
type present struct {
	Addresses []netip.Prefix
	Routes    []tableRoute   // as addRoute adds them
	Connected []netip.Prefix // of the kernel's own routes, for addresses
	Rules     []hostnet.Rule // of both families
	MTU       int
	Up        bool
}

func (j *job) present() (present, error) {
	link, err := hostnet.FindLink(j.Name)
	if err != nil {
		return present{}, err
	}
	now := present{MTU: link.MTU, Up: link.Up}
	if now.Addresses, err = hostnet.Addresses(j.Name); err != nil {
		return now, err
	}
	routes, connected, err := hostnet.LinkRoutes(j.Name)
	for _, r := range routes {
		now.Routes = append(now.Routes, tableRoute{Dst: r.Dst, Table: r.Table})
	}
	now.Connected = connected
	for _, family := range hostnet.Families() {
		rules, errRules := hostnet.Rules(family)
		now.Rules, err = append(now.Rules, rules...), errors.Join(err, errRules)
	}
	return now, err
}

// policy reports whether the kernel has the rule of addMarkRule, its priority, and whether one of addSuppressRule precedes it.
func (p *present) policy(family hostnet.Family, mark uint32) (marked bool, priority int, preceded bool) {
	rules := slices.DeleteFunc(slices.Clone(p.Rules), func(r hostnet.Rule) bool { return r.Family != family })
	n := slices.IndexFunc(rules, func(r hostnet.Rule) bool { return r.Table == mark && r.NotMark == mark })
	if n < 0 {
		return false, 0, false
	}
	return true, rules[n].Priority, slices.ContainsFunc(rules[:n], suppresses)
}

// needed returns the routes without routes that the kernel's own make needless, as wg-quick's `ip
// route show dev LINK match DST` does.
func (p *present) needed(routes []tableRoute) []tableRoute {
	connected := setOf(p.Connected)
	return slices.DeleteFunc(slices.Clone(routes), func(r tableRoute) bool { return r.Table == 0 && covered(r.Dst, connected) })
}

// missing returns the routes that are needed and that the interface lacks.
func (p *present) missing(routes []tableRoute) []tableRoute {
	return routesWithout(p.needed(routes), p.Routes)
}

// absent returns the addresses that the interface does not have, whatever their prefix length or
// peer: a hook may have changed these. The kernel compares IPv6 addresses likewise.
func (p *present) absent(addrs []netip.Prefix) []netip.Prefix {
	has := map[netip.Addr]bool{}
	for _, a := range p.Addresses {
		has[a.Addr()] = true
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Prefix) bool { return has[a.Addr()] })
}

// asWritten replaces addresses that a hook has given another prefix length or a peer. It takes the
// address of the same IP in a file.
func asWritten(addrs, written []netip.Prefix) []netip.Prefix {
	exact, byIP := setOf(written), map[netip.Addr]netip.Prefix{}
	for _, w := range slices.Backward(written) {
		byIP[w.Addr()] = w
	}
	addrs = slices.Clone(addrs)
	for i, a := range addrs {
		if w, ok := byIP[a.Addr()]; ok && !exact[a] {
			addrs[i] = w
		}
	}
	return addrs
}

// covered reports whether one of the prefixes contains p.
func covered(p netip.Prefix, prefixes map[netip.Prefix]bool) bool {
	for bits := p.Bits(); bits >= 0; bits-- {
		if wider, err := p.Addr().Prefix(bits); err == nil && prefixes[wider] {
			return true
		}
	}
	return false
}

// routesWithout returns the routes that are not among others, each once. Names of tables make no
// difference.
func routesWithout(routes, others []tableRoute) (left []tableRoute) {
	seen := map[tableRoute]bool{}
	for _, r := range others {
		seen[r.key()] = true
	}
	for _, r := range routes {
		if !seen[r.key()] {
			seen[r.key()] = true
			left = append(left, r)
		}
	}
	return left
}
