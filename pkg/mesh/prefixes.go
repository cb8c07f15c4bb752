// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// prefixes are those of a node's pods that it may have.
type prefixes struct {
	own      []netip.Prefix // in order
	problems []string
}

// refuse notes that a prefix is not the node's.
func (p *prefixes) refuse(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// The shortest prefixes that one node's pods may have where nobody says which are the cluster's: with a shorter one, a node
// could have what is for the world outside.
const (
	minBits4 = 16
	minBits6 = 48
)

// unfitForPods tells what is wrong with a prefix for pods, whoever has it; "" if nothing is. cluster are the cluster's, if known.
func unfitForPods(p netip.Prefix, cluster []netip.Prefix) string {
	a := p.Addr()
	switch {
	case len(cluster) > 0:
		if !slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return contains(c, p) }) {
			return "is not within the cluster's"
		}
	case a.Is4() && p.Bits() < minBits4 || a.Is6() && p.Bits() < minBits6:
		return "is too large for one node's"
	case !isUsable(a):
		return "is not for hosts"
	}
	return ""
}

// contains tells whether all of inner is in outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// claim is one node's to a prefix, with the eldest of the nodes that claim what is around it, or within it.
type claim struct {
	prefix         netip.Prefix
	node           *Node
	around, within *Node
}

// ownPrefixes tells whose each prefix is. Of two that overlap, the elder node's counts. The same goes for a prefix and an
// address in it, unless the prefix is one of the cluster's.
func ownPrefixes(nodes []Node, cluster []netip.Prefix) map[string]prefixes {
	mine := make(map[string]prefixes, len(nodes))
	var all []claim
	var at atAddrs
	if len(cluster) == 0 {
		at = residents(nodes)
	}
	for i := range nodes {
		n := &nodes[i]
		for _, p := range n.PodCIDRs {
			p = p.Masked()
			reason := unfitForPods(p, cluster)
			if reason == "" {
				if elder := at.elderWithin(p, n); elder != nil {
					reason = "holds an address of " + elder.Name
				}
			}
			if reason != "" {
				of := mine[n.Name]
				of.refuse("its pods' %s %s", p, reason)
				mine[n.Name] = of
				continue
			}
			all = append(all, claim{prefix: p, node: n})
		}
	}
	slices.SortFunc(all, func(a, b claim) int { return cmp.Or(comparePrefixes(a.prefix, b.prefix), byAge(a.node, b.node)) })
	nest(all)
	for _, c := range all {
		of := mine[c.node.Name]
		if holder := eldest(c.node, eldest(c.around, c.within)); holder == c.node {
			of.own = append(of.own, c.prefix)
		} else {
			of.refuse("its pods' %s overlaps those of %s", c.prefix, holder.Name)
		}
		mine[c.node.Name] = of
	}
	for name, p := range mine {
		p.own = slices.Compact(p.own)
		mine[name] = p
	}
	return mine
}

// resident is a node at an address.
type resident struct {
	addr netip.Addr
	node *Node
}

// atAddrs are nodes in the order of their addresses.
type atAddrs []resident

func residents(nodes []Node) (all atAddrs) {
	for i := range nodes {
		for _, a := range nodes[i].addrs() {
			all = append(all, resident{a, &nodes[i]})
		}
	}
	slices.SortFunc(all, func(a, b resident) int { return cmp.Or(a.addr.Compare(b.addr), byAge(a.node, b.node)) })
	return all
}

// elderWithin returns a node that is elder and has an address in a prefix, or nil.
func (all atAddrs) elderWithin(p netip.Prefix, n *Node) *Node {
	i, _ := slices.BinarySearchFunc(all, p.Addr(), func(r resident, a netip.Addr) int { return r.addr.Compare(a) })
	for ; i < len(all) && p.Contains(all[i].addr); i++ {
		if byAge(all[i].node, n) < 0 {
			return all[i].node
		}
	}
	return nil
}

// nest fills in who is around and within, in one pass: prefixes are nested or apart, so that in their order what is around
// one is a stack.
func nest(all []claim) {
	var stack []*claim
	pop := func() {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if len(stack) > 0 {
			below := stack[len(stack)-1]
			below.within = eldest(below.within, eldest(top.node, top.within))
		}
	}
	for i := range all {
		c := &all[i]
		for len(stack) > 0 && !contains(stack[len(stack)-1].prefix, c.prefix) {
			pop()
		}
		if len(stack) > 0 {
			top := stack[len(stack)-1]
			c.around = eldest(top.node, top.around)
		}
		stack = append(stack, c)
	}
	for len(stack) > 0 {
		pop()
	}
}

// eldest returns the elder of two nodes, either of which may be nil.
func eldest(a, b *Node) *Node {
	if b == nil || a != nil && byAge(a, b) <= 0 {
		return a
	}
	return b
}

// comparePrefixes puts a prefix in front of those within it.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// owners finds the node that an address is a pod's of.
type owners struct{ table bart.Table[string] }

func newOwners(mine map[string]prefixes) *owners {
	o := &owners{}
	for name, of := range mine {
		for _, p := range of.own {
			o.table.Insert(p, name)
		}
	}
	return o
}

// of returns the node's name, "" for none.
func (o *owners) of(a netip.Addr) string {
	name, _ := o.table.Lookup(a)
	return name
}
