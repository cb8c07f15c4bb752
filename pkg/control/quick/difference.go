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
	now         present  // the interface's, which others may have changed
	mark        uint32   // the device's
	facts       Facts
}

// steps returns the steps of the change. Addresses and routes that others have added stay. Routes
// and rules are added before others are removed: without either, packets for the tunnel would
// leave by the host's default route, in cleartext. Only the routes that the kernel removes with
// the last IPv4 address are added after it has gone. Which routes the kernel makes for addresses
// is not known in advance. So while addresses are removed, routes to the same prefixes stand in
// for them.
func (d *difference) steps() []Step {
	added, removed := d.addresses()
	steps := slices.Concat(d.bridge(), added, d.addPolicy(), removed, d.restoreOthers(), d.addRoutes(), d.removePolicy(), d.removeRoutes())
	if d.wanted.MTU < d.now.MTU { // last: below ipv6MinMTU there are no IPv6 addresses and routes to remove
		steps = append(steps, d.mtu()...)
	} else {
		steps = append(d.mtu(), steps...)
	}
	if steps = append(steps, d.dns()...); len(steps) > 0 || d.setsUp() {
		restore := sequence{restoreAddresses{d.link, d.now.Addresses}, restoreRoutes{d.link, d.now.Routes}}
		during := d.old.during(d.wanted) // if Reload is killed, the next Reload or Down finds all that it may have made
		during.Routes = append(during.Routes, d.bridges()...)
		steps = slices.Insert(steps, 0, Step(reversible{recordSettings{during}, recordSettings{d.old}}), d.linkUp(), Step(reversible{sequence{}, restore}))
		return append(steps, d.record(during))
	}
	return []Step{d.record(d.old)}
}

// linkUp returns a step that does nothing if the link is up.
func (d *difference) linkUp() Step {
	if !d.setsUp() {
		return sequence{}
	}
	return linkUp{d.link, d.now.MTU}
}

// setsUp reports whether another program than PostUp has set the link down.
func (d *difference) setsUp() bool { return !d.now.Up && !d.wanted.Accepted.Down }

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

// plannedMTU returns the MTU after Reload. An MTU that Up derived from the routes stays as it is,
// unless IPv6 needs more. An MTU that the file still has stays as Up and its hooks have left it.
func (d *difference) plannedMTU() int {
	if d.wanted.FileMTU != 0 && d.wanted.FileMTU == d.old.FileMTU && !d.old.Interrupted {
		return d.old.MTU
	}
	stays := d.wanted.FileMTU == 0 && d.old.FileMTU == 0
	if stays && (d.now.MTU >= ipv6MinMTU || d.wanted.MTU < ipv6MinMTU) {
		return d.now.MTU
	}
	return d.wanted.MTU
}

func (d *difference) mtu() []Step {
	if d.wanted.MTU == d.now.MTU {
		return nil
	}
	return []Step{reversible{setMTU{d.link, d.wanted.MTU}, setMTU{d.link, d.now.MTU}}}
}

// addresses returns the steps that add addresses, and then the steps that remove others. With the
// last IPv4 address of an interface, the kernel removes its IPv4 routes.
func (d *difference) addresses() (add, remove []Step) {
	removed := d.removedAddresses()
	if slices.ContainsFunc(removed, func(a netip.Prefix) bool {
		return a.Addr().Is4() && slices.ContainsFunc(d.wanted.Addresses, func(b netip.Prefix) bool { return a.Masked() == b.Masked() })
	}) {
		add = append(add, promoteSecondaries{d.link})
	}
	for _, a := range removed {
		step := reversible{removeAddress{d.link, a}, addAddress{d.link, a}}
		if d.changesLength(a) {
			add = append(add, step)
		} else {
			remove = append(remove, step)
		}
	}
	for _, a := range d.addedAddresses() {
		add = append(add, reversible{addAddress{d.link, a}, removeAddress{d.link, a}})
	}
	return add, remove
}

// changesLength reports whether an IPv6 address that is removed has another prefix length afterwards. The kernel has one for each address, so
// such an address goes before it comes back.
func (d *difference) changesLength(removed netip.Prefix) bool {
	return removed.Addr().Is6() && slices.ContainsFunc(d.wanted.Addresses, func(a netip.Prefix) bool { return a.Addr() == removed.Addr() })
}

func (d *difference) addedAddresses() []netip.Prefix {
	return without(d.wanted.Addresses, slices.Concat(d.now.Addresses, d.wanted.Accepted.Addresses))
}

func (d *difference) removedAddresses() []netip.Prefix {
	return intersection(without(d.old.Addresses, d.wanted.Addresses), d.now.Addresses)
}

// bridges returns routes beside the kernel's routes for addresses, while addresses are removed.
func (d *difference) bridges() (routes []tableRoute) {
	if len(d.removedAddresses()) == 0 {
		return nil
	}
	for _, dst := range d.now.Connected {
		routes = append(routes, tableRoute{Dst: dst, Table: hostnet.MainTable})
	}
	return routesWithout(routes, d.now.Routes)
}

func (d *difference) bridge() (steps []Step) {
	for _, r := range d.bridges() {
		add := r.step(d.link)
		add.beside = true
		steps = append(steps, reversible{add, removeRoute(add)})
	}
	return steps
}

// restoreOthers adds the routes again that the kernel removes with an address although they are to
// stay.
func (d *difference) restoreOthers() []Step {
	if len(d.removedAddresses()) == 0 {
		return nil
	}
	return []Step{restoreRoutes{d.link, routesWithout(d.now.Routes, routesWithout(d.old.Routes, d.wanted.Routes))}}
}

// changesAddresses reports whether the kernel's own routes may change.
func (d *difference) changesAddresses() bool {
	return len(d.removedAddresses())+len(d.addedAddresses()) > 0 || d.setsUp()
}

func (d *difference) addRoutes() []Step {
	routes := routesWithout(d.wanted.Routes, slices.Concat(d.now.Routes, d.wanted.Accepted.Routes))
	if !d.changesAddresses() {
		routes = d.now.missing(routes)
		for i := range routes {
			routes[i].Table = routes[i].table() // the kernel has been asked
		}
	}
	if len(routes) == 0 {
		return nil
	}
	return []Step{reversible{addRoutes{d.link, routes}, removeRoutes{link: d.link, routes: routesWithout(routes, d.bridges())}}}
}

// removeRoutes removes the routes that are not wanted any more, and routes that are needless
// because of other addresses.
func (d *difference) removeRoutes() []Step {
	bridges := d.bridges()
	candidates, keep := slices.Concat(bridges, d.old.Routes), d.now.needed(d.wanted.Routes)
	if d.changesAddresses() {
		candidates, keep = append(candidates, d.wanted.Routes...), d.wanted.Routes
	} else {
		candidates = routesWithout(candidates, keep)
	}
	has := slices.Concat(bridges, d.now.Routes)
	routes := routesWithout(has, routesWithout(has, candidates))
	if len(routes) == 0 {
		return nil
	}
	return []Step{reversible{removeRoutes{d.link, routes, keep}, restoreRoutes{d.link, routes}}}
}

// addPolicy adds the rules for default routes, and the firewall, which depends on the addresses.
func (d *difference) addPolicy() []Step {
	var steps []Step
	mark, before := d.wanted.Mark, d.mark
	if mark != 0 && mark != before {
		steps = append(steps, reversible{setFwMark{d.link, mark}, setFwMark{d.link, before}})
	}
	for _, f := range d.wanted.Policy {
		marked, _, preceded := d.now.policy(f, mark)
		accepts := func(suppress bool) bool {
			return slices.Contains(d.wanted.Accepted.Rules, policyRule{f, mark, suppress})
		}
		if !marked && !accepts(false) {
			steps = append(steps, removeRules{f, mark}, addMarkRule{f, mark}) // a suppress rule may be left
		}
		if (!marked && !accepts(false) || marked && !preceded) && !accepts(true) {
			steps = append(steps, reversible{addSuppressRule{f, mark}, nil})
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
	for _, mark := range d.old.marks() {
		for _, f := range d.old.Policy {
			if mark != d.wanted.Mark || !slices.Contains(d.wanted.Policy, f) {
				steps = append(steps, reversible{removeRules{f, mark}, rulesOf(f, mark)})
			}
		}
	}
	if d.wanted.Mark == 0 && !d.wanted.FileMark && (d.old.FileMark || d.old.Mark != 0) { // the file's, or chosen by up
		steps = append(steps, reversible{setFwMark{d.link, 0}, setFwMark{d.link, d.mark}})
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
	if !d.old.Interrupted && slices.EqualFunc(old, wanted, func(a, b Step) bool {
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
	if d.old.DNS.equal(d.wanted.DNS) && (!d.old.Interrupted || len(d.wanted.DNS.Servers) == 0) {
		return nil
	}
	return []Step{reversible{sequence{}, set(d.old.DNS)}, set(d.wanted.DNS)} // a failed setDNS removes the entry
}

// record saves the wanted settings. Settings that need Up stay as they were, so that the next
// Reload reports them again.
func (d *difference) record(undone settings) Step {
	wanted := d.wanted
	wanted.Hooks, wanted.Lanes, wanted.Metrics = d.old.Hooks, d.old.Lanes, d.old.Metrics
	return reversible{recordSettings{wanted}, recordSettings{undone}}
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
