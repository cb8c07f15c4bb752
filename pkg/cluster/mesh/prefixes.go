// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// podPrefixes are the pod prefixes of a node that were accepted.
type podPrefixes struct {
	accepted []netip.Prefix // in order
	problems []string
	refused  int // prefixes that are not accepted
}

// reject records why a prefix is not accepted.
func (p *podPrefixes) reject(format string, args ...any) {
	p.refused++
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// The shortest pod prefixes that a node may have if the cluster's prefixes are not configured. With a shorter one, a node could
// attract traffic for the Internet.
const (
	minBits4 = 16
	minBits6 = 48
)

// maxPodPrefixes is the maximum number of prefixes of a node. Each is a route, an exemption or an
// allowed IP on all others. With some network plugins any node may write any number for any node.
// Plugins assign blocks of 16 addresses and more, or one for each pod.
const maxPodPrefixes = 1024

// podPrefixProblem returns why no node may have a prefix for its pods, or "". cluster and services have the cluster's prefixes, if they are
// known.
func podPrefixProblem(p netip.Prefix, cluster, services []netip.Prefix) string {
	a := p.Addr()
	switch {
	case slices.ContainsFunc(services, p.Overlaps):
		return "overlaps the cluster's Service prefixes"
	case a.Is4In6():
		return "is an IPv4 prefix in IPv6 form"
	case len(cluster) > 0:
		if !slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return contains(c, p) }) {
			return "is outside of the cluster's pod prefixes"
		}
	case a.Is4() && p.Bits() < minBits4 || a.Is6() && p.Bits() < minBits6:
		return "is too large for one node"
	case !isUsableAddr(a):
		return "is no global unicast prefix"
	}
	return ""
}

// contains reports whether inner lies within outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// prefixClaim is a node's claim to a prefix. containing and contained are the oldest nodes that claim a prefix around it and
// within it.
type prefixClaim struct {
	prefix                netip.Prefix
	node                  *Node
	containing, contained *Node
}

// assignPrefixes returns the accepted prefixes of each node. Of two overlapping prefixes, the older node's is accepted. The
// same holds for a prefix and another node's address within it, unless the cluster's prefixes are known.
func assignPrefixes(nodes []Node, cluster, services []netip.Prefix) map[string]*podPrefixes {
	byNode := make(map[string]*podPrefixes, len(nodes))
	claims := claimPrefixes(byNode, nodes, cluster, services)
	slices.SortFunc(claims, func(a, b prefixClaim) int {
		return cmp.Or(comparePrefixes(a.prefix, b.prefix), compareAge(a.node, b.node))
	})
	findOverlaps(claims)
	for _, c := range claims {
		assigned := byNode[c.node.Name]
		if owner := older(c.node, older(c.containing, c.contained)); owner == c.node {
			assigned.accepted = append(assigned.accepted, c.prefix)
		} else {
			assigned.reject("its pod prefix %s is not used: it overlaps the pods of node %s", c.prefix, owner.Name)
		}
	}
	for _, p := range byNode {
		p.accepted = slices.Compact(p.accepted)
	}
	return byNode
}

// claimPrefixes adds each node to byNode, with its prefixes that are rejected whatever other nodes claim, and returns the others.
func claimPrefixes(byNode map[string]*podPrefixes, nodes []Node, cluster, services []netip.Prefix) (claims []prefixClaim) {
	var at nodeAddrs
	if len(cluster) == 0 {
		at = sortedNodeAddrs(nodes)
	}
	for i := range nodes {
		n, assigned := &nodes[i], &podPrefixes{}
		byNode[n.Name] = assigned
		if len(n.PodCIDRs) > maxPodPrefixes {
			assigned.reject("it has %d pod prefixes, of which the first %d are used", len(n.PodCIDRs), maxPodPrefixes)
		}
		for _, p := range n.PodCIDRs[:min(len(n.PodCIDRs), maxPodPrefixes)] {
			p = p.Masked()
			if reason := podPrefixProblem(p, cluster, services); reason != "" {
				assigned.reject("its pod prefix %s is not used: it %s", p, reason)
			} else if olderNode := at.olderNodeIn(p, n); olderNode != nil {
				assigned.reject("its pod prefix %s is not used: it contains an address of node %s", p, olderNode.Name)
			} else {
				claims = append(claims, prefixClaim{prefix: p, node: n})
			}
		}
	}
	return claims
}

// nodeAddr is an address of a node.
type nodeAddr struct {
	addr netip.Addr
	node *Node
}

// nodeAddrs is sorted by address.
type nodeAddrs []nodeAddr

func sortedNodeAddrs(nodes []Node) (all nodeAddrs) {
	for i := range nodes {
		for _, a := range nodes[i].addrs() {
			all = append(all, nodeAddr{a, &nodes[i]})
		}
	}
	slices.SortFunc(all, func(a, b nodeAddr) int { return cmp.Or(a.addr.Compare(b.addr), compareAge(a.node, b.node)) })
	return all
}

// olderNodeIn returns an older node that has an address within a prefix, or nil.
func (all nodeAddrs) olderNodeIn(p netip.Prefix, n *Node) *Node {
	i, _ := slices.BinarySearchFunc(all, p.Addr(), func(r nodeAddr, a netip.Addr) int { return r.addr.Compare(a) })
	for ; i < len(all) && p.Contains(all[i].addr); i++ {
		if compareAge(all[i].node, n) < 0 {
			return all[i].node
		}
	}
	return nil
}

// findOverlaps sets containing and contained in one pass. Prefixes are either nested or disjoint, so that in sorted order the
// enclosing ones form a stack.
func findOverlaps(all []prefixClaim) {
	var stack []*prefixClaim
	pop := func() {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if len(stack) > 0 {
			below := stack[len(stack)-1]
			below.contained = older(below.contained, older(top.node, top.contained))
		}
	}
	for i := range all {
		c := &all[i]
		for len(stack) > 0 && !contains(stack[len(stack)-1].prefix, c.prefix) {
			pop()
		}
		if len(stack) > 0 {
			top := stack[len(stack)-1]
			c.containing = older(top.node, top.containing)
		}
		stack = append(stack, c)
	}
	for len(stack) > 0 {
		pop()
	}
}

// older returns the older of two nodes. Either may be nil.
func older(a, b *Node) *Node {
	if b == nil || a != nil && compareAge(a, b) <= 0 {
		return a
	}
	return b
}

// comparePrefixes orders a prefix before those within it.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// podOwners finds the node of a pod's address.
type podOwners struct{ table bart.Table[string] }

func newPodOwners(byNode map[string]*podPrefixes) *podOwners {
	o := &podOwners{}
	for name, assigned := range byNode {
		for _, p := range assigned.accepted {
			o.table.Insert(p, name)
		}
	}
	return o
}

// owner returns the node's name, or "".
func (o *podOwners) owner(a netip.Addr) string {
	name, _ := o.table.Lookup(a)
	return name
}
