// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// difference is a change of settings. It is pure.
type difference struct {
	link        string
	old, wanted settings // of the plan at the last Up or Reload, and of the present file
	now         settings // the interface's, which others may have changed
	facts       Facts
}

// steps returns the steps of the change. Addresses and routes that others have added stay. Routes and rules are added before others are
// removed, also those that the kernel has added for addresses: without either, packets for the tunnel would leave by the host's default
// route, in cleartext. Only the routes that the kernel removes with the last IPv4 address are added after it has gone.
func (d *difference) steps() []Step {
	added, removed := d.addresses()
	early, late := d.addRoutes()
	routes := slices.Concat(added, d.addPolicy(), early, removed, late, d.removePolicy(), d.removeRoutes())
	if d.wanted.MTU < d.now.MTU { // last: below ipv6MinMTU there are no IPv6 addresses and routes to remove, or to add again
		return slices.Concat(routes, d.mtu(), d.dns(), d.record())
	}
	return slices.Concat(d.mtu(), routes, d.dns(), d.record())
}

// notes returns the settings that only a new daemon, or Up, reads.
func (d *difference) notes() (notes []string) {
	for key, changed := range map[string]bool{
		"PreUp or PostUp": d.old.Hooks != d.wanted.Hooks,
		"Lanes":           d.old.Lanes != d.wanted.Lanes,
		"Metrics":         d.old.Metrics != d.wanted.Metrics,
	} {
		if changed {
			notes = append(notes, fmt.Sprintf("%s of %s changed in the file: this needs `ropewalk down` and `ropewalk up`", key, d.link))
		}
	}
	slices.Sort(notes)
	return notes
}

func (d *difference) mtu() []Step {
	want := d.wanted.MTU
	if want == d.now.MTU || d.wanted.FileMTU == 0 && d.old.FileMTU == 0 { // one by the routes stays as Up has found it
		return nil
	}
	var lost settings
	if want < ipv6MinMTU {
		lost = d.ipv6()
	}
	return []Step{reversible{setMTU{d.link, want}, sequence{setMTU{d.link, d.now.MTU}, restoreAddresses{d.link, lost.Addresses}, restoreRoutes{d.link, lost.Routes}}}}
}

// ipv6MinMTU is the minimum MTU of a link with IPv6 (RFC 8200, section 5). Below it the kernel removes IPv6 addresses and routes.
const ipv6MinMTU = 1280

// ipv6 returns the IPv6 addresses and routes that the interface has after all steps but that of the MTU.
func (d *difference) ipv6() (s settings) {
	for _, a := range without(slices.Concat(d.now.Addresses, d.wanted.Addresses), without(d.old.Addresses, d.wanted.Addresses)) {
		if a.Addr().Is6() {
			s.Addresses = append(s.Addresses, a)
		}
	}
	old, wanted := unnamed(d.old.Routes), unnamed(d.wanted.Routes)
	for _, r := range without(slices.Concat(d.now.Routes, wanted), without(old, wanted)) {
		if r.Dst.Addr().Is6() {
			add := d.step(r)
			s.Routes = append(s.Routes, tableRoute{add.dst, add.table, add.name})
		}
	}
	return s
}

// addresses returns the steps that add addresses and those that remove others, in this order: with the last IPv4 address of an interface,
// the kernel removes its IPv4 routes.
func (d *difference) addresses() (add, remove []Step) {
	added := without(d.wanted.Addresses, d.now.Addresses)
	removed := d.removedAddresses()
	if d.losesIPv4() {
		add = append(add, reversible{sequence{}, restoreRoutes{d.link, d.lostRoutes()}})
	}
	if slices.ContainsFunc(removed, func(a netip.Prefix) bool {
		return a.Addr().Is4() && slices.ContainsFunc(d.wanted.Addresses, func(b netip.Prefix) bool { return a.Masked() == b.Masked() })
	}) {
		add = append(add, promoteSecondaries{d.link})
	}
	for _, r := range d.bridges() {
		route := d.step(r)
		add = append(add, reversible{route, removeRoute(route)})
		remove = append(remove, reversible{removeRoute(route), route})
	}
	for _, a := range removed {
		step := reversible{removeAddress{d.link, a}, addAddress{d.link, a}}
		if d.changesLength(a) {
			add = append(add, step)
		} else {
			remove = append(remove, step)
		}
	}
	for _, a := range added {
		add = append(add, reversible{addAddress{d.link, a}, removeAddress{d.link, a}})
	}
	return add, remove
}

// changesLength reports whether an IPv6 address that is removed has another prefix length afterwards. The kernel has one for each address, so
// such an address goes before it comes back.
func (d *difference) changesLength(removed netip.Prefix) bool {
	return removed.Addr().Is6() && slices.ContainsFunc(d.wanted.Addresses, func(a netip.Prefix) bool { return a.Addr() == removed.Addr() })
}

// bridges returns the routes that stand in for those of the kernel while addresses change their length.
func (d *difference) bridges() (routes []tableRoute) {
	for _, a := range d.removedAddresses() {
		if d.changesLength(a) && !a.IsSingleIP() {
			routes = append(routes, tableRoute{Dst: a.Masked()})
		}
	}
	return without(routes, slices.Concat(d.now.Routes, unnamed(d.wanted.Routes)))
}

func (d *difference) removedAddresses() []netip.Prefix {
	return intersection(without(d.old.Addresses, d.wanted.Addresses), d.now.Addresses)
}

// losesIPv4 reports whether the last IPv4 address is removed.
func (d *difference) losesIPv4() bool {
	is4 := func(a netip.Prefix) bool { return a.Addr().Is4() }
	others := without(d.now.Addresses, d.old.Addresses)
	return slices.ContainsFunc(d.now.Addresses, is4) && !slices.ContainsFunc(slices.Concat(others, d.wanted.Addresses), is4)
}

// lostRoutes returns the routes that the kernel removes with the last IPv4 address.
func (d *difference) lostRoutes() []tableRoute {
	if !d.losesIPv4() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(d.now.Routes), func(r tableRoute) bool { return !r.Dst.Addr().Is4() })
}

func (d *difference) removeRoutes() (steps []Step) {
	left := without(d.now.Routes, d.lostRoutes())
	for _, r := range without(unnamed(d.old.Routes), unnamed(d.wanted.Routes)) {
		if slices.Contains(left, r) {
			add := d.step(r)
			steps = append(steps, reversible{removeRoute(add), add})
		}
	}
	return steps
}

// addRoutes returns the steps that add routes, before and after addresses are removed. It also adds the lost routes again that others
// have added.
func (d *difference) addRoutes() (early, late []Step) {
	lost, removed := d.lostRoutes(), d.removedAddresses()
	left, others := without(d.now.Routes, lost), without(lost, unnamed(d.old.Routes))
	for _, r := range without(slices.Concat(unnamed(d.wanted.Routes), others), left) {
		add := d.step(r)
		if r.Dst.Addr().Is4() && d.losesIPv4() {
			late = append(late, reversible{add, removeRoute(add)})
			continue
		}
		add.beside = r.Dst.Addr().Is4() && r.Table == 0 && slices.ContainsFunc(removed, func(a netip.Prefix) bool { return a.Masked() == r.Dst })
		early = append(early, reversible{add, removeRoute(add)})
	}
	return early, late
}

// unnamed returns the routes without the names of their tables. The main table has number 0.
func unnamed(routes []tableRoute) []tableRoute {
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].Name = ""
		if routes[i].Table == hostnet.MainTable {
			routes[i].Table = 0
		}
	}
	return routes
}

// step returns the step that adds a route, with the name of its table as a file has it.
func (d *difference) step(r tableRoute) addRoute {
	named := slices.Concat(d.wanted.Routes, d.old.Routes)
	if i := slices.Index(unnamed(named), r); i >= 0 {
		r.Name = named[i].Name
	} else if r.Table != 0 {
		r.Name = decimal(r.Table)
	}
	return addRoute{link: d.link, dst: r.Dst, table: r.Table, name: r.Name}
}

// kept reports whether the rules of s for a family are those of other, too.
func kept(s settings, f hostnet.Family, other settings) bool {
	return slices.Contains(other.Policy, f) && other.Mark == s.Mark
}

// addPolicy adds the rules for default routes, and the firewall, which depends on the addresses.
func (d *difference) addPolicy() []Step {
	var steps []Step
	mark, before := d.wanted.Mark, d.now.Mark
	if mark != 0 && mark != d.old.Mark {
		steps = append(steps, reversible{recordTable{mark}, recordTable{d.old.Mark}})
	}
	if mark != 0 && mark != before {
		steps = append(steps, reversible{setFwMark{d.link, mark}, setFwMark{d.link, before}})
	}
	for _, f := range d.wanted.Policy {
		if !kept(d.wanted, f, d.old) {
			steps = append(steps, reversible{addMarkRule{f, d.wanted.Mark}, removeRules{f, d.wanted.Mark}}, addSuppressRule{f, d.wanted.Mark})
		}
	}
	if slices.Contains(d.wanted.Policy, hostnet.IPv4) && !d.facts.SrcValidMark {
		steps = append(steps, setSrcValidMark{})
	}
	if len(d.wanted.Policy) > 0 {
		steps = append(steps, d.firewall()...)
	}
	return steps
}

// removePolicy removes the rules for default routes that are not wanted any more, and with the last of them the firewall.
func (d *difference) removePolicy() []Step {
	var steps []Step
	for _, f := range d.old.Policy {
		if !kept(d.old, f, d.wanted) {
			steps = append(steps, reversible{removeRules{f, d.old.Mark}, rulesOf(f, d.old.Mark)})
		}
	}
	if d.wanted.Mark == 0 && !d.wanted.FileMark && (d.old.FileMark || d.old.Mark != 0) { // the file's, or one that up has chosen
		steps = append(steps, reversible{setFwMark{d.link, 0}, setFwMark{d.link, d.now.Mark}})
	}
	if len(d.wanted.Policy) == 0 {
		steps = append(steps, d.firewall()...)
	}
	return steps
}

func rulesOf(f hostnet.Family, mark uint32) Step {
	return sequence{addMarkRule{f, mark}, addSuppressRule{f, mark}}
}

func (d *difference) firewall() []Step {
	old, wanted := d.firewallOf(d.old), d.firewallOf(d.wanted)
	if slices.EqualFunc(old, wanted, func(a, b Step) bool {
		x, y := a.(addFirewall), b.(addFirewall)
		return x.family == y.family && x.mark == y.mark && slices.Equal(x.addrs, y.addrs)
	}) {
		return nil
	}
	remove := Step(removeFirewall{d.link})
	steps := []Step{reversible{remove, append(sequence{remove}, old...)}}
	return append(steps, wanted...)
}

func (d *difference) firewallOf(s settings) (steps []Step) {
	for _, f := range s.Policy {
		steps = append(steps, addFirewall{link: d.link, family: f, mark: s.Mark, tool: d.facts.Firewalls[f], addrs: addressesOf(s.Addresses, f)})
	}
	return steps
}

func (d *difference) dns() []Step {
	entry := d.facts.DNSPrefix + d.link
	set := func(e dnsEntry) Step {
		if len(e.Servers) == 0 {
			return sequence{unsetDNS{entry}, recordDNS{false}}
		}
		return setDNS{entry: entry, servers: e.Servers, search: e.Search}
	}
	if d.old.DNS.equal(d.wanted.DNS) {
		return nil
	}
	return []Step{reversible{sequence{}, set(d.old.DNS)}, set(d.wanted.DNS)} // a failed setDNS removes the entry
}

// record saves the wanted settings. Those that need Up stay as they were, so that the next Reload reports them again.
func (d *difference) record() []Step {
	wanted := d.wanted
	wanted.Hooks, wanted.Lanes, wanted.Metrics = d.old.Hooks, d.old.Lanes, d.old.Metrics
	return []Step{reversible{recordSettings{wanted}, recordSettings{d.old}}}
}

// without returns the elements of a that are not in b, each once.
func without[T comparable](a, b []T) (left []T) {
	seen := setOf(b)
	for _, v := range a {
		if !seen[v] {
			seen[v] = true
			left = append(left, v)
		}
	}
	return left
}

func intersection[T comparable](a, b []T) []T {
	in := setOf(b)
	return slices.DeleteFunc(slices.Clone(a), func(v T) bool { return !in[v] })
}

// setOf lets tens of thousands of routes be compared in milliseconds.
func setOf[T comparable](s []T) map[T]bool {
	set := make(map[T]bool, len(s))
	for _, v := range s {
		set[v] = true
	}
	return set
}
