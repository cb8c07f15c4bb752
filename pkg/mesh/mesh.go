// SPDX-License-Identifier: Apache-2.0

// Package mesh decides what a node of a cluster does towards the others: whom it spreads towards and gathers from
// (Spread), or which WireGuard peers and routes it has (Tunnel), and which changes lead there from what it has (Diff).
// All are pure functions of what the cluster tells of its nodes. They may be called concurrently, and give the same for
// the same nodes in any order.
//
// Whom to believe: whoever takes a node over can write its kubelet's word (addresses, at times pod CIDRs) and its agent's
// (keys, endpoints, ports). So no more of either is believed than concerns the node itself: endpoints that are not its
// addresses are nothing, an address among another node's pods is none of its own, and what no device could be told is a
// Problem of that node and of nobody else. Where two nodes claim one thing, the one that was there first keeps it, so that
// a newcomer takes nothing away; of keys, the one that is known to have it, so that an elder does not either.
package mesh

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Mode is what an agent does.
type Mode string

// The modes.
const (
	ModeSpread Mode = "spread" // spread and gather for the WireGuard that the cluster has
	ModeMesh   Mode = "mesh"   // be the cluster's WireGuard
)

// Node is what the cluster tells of one node.
type Node struct {
	Name    string // unique
	Created time.Time
	// Addrs are the node's own, the best first.
	Addrs []netip.Addr
	// Endpoint is the address at which administrators say that it is reached; invalid: at Addrs.
	Endpoint netip.Addr
	PodCIDRs []netip.Prefix
	// OptOut: administrators want the node left alone.
	OptOut bool
	// Agent is what the node's agent tells; nil: it has none, or none that has told anything.
	Agent *Agent
}

// Agent is what a node's agent tells.
type Agent struct {
	Mode      Mode
	Key       noise.PublicKey // zero: none yet
	NextKey   noise.PublicKey // accepted beside Key while that changes; zero: none
	Endpoints []netip.AddrPort
	// Ports are the source ports that the node spreads over; empty: it has not told.
	Ports spread.Ports
	// Plans are the ports that it wants others to take towards it.
	Plans Plans
	// MTU is that of the node's tunnel; 0: it has not told.
	MTU int
	// Gathers tells that others may spread towards the node.
	Gathers bool
}

// Problem is why a node is not dealt with as its agent wants.
type Problem struct {
	Node   string
	Reason string
}

// maxAddrs is how many of a node's addresses count.
const maxAddrs = 8

// endpoints are those that the node's agent tells of and that are the node's, at most one at each address.
func (n *Node) endpoints() []netip.AddrPort {
	var own []netip.AddrPort
	addrs := n.addrs()
	for _, e := range n.Agent.Endpoints {
		e = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
		known := slices.ContainsFunc(own, func(o netip.AddrPort) bool { return o.Addr() == e.Addr() })
		if e.Port() != 0 && !known && slices.Contains(addrs, e.Addr()) {
			own = append(own, e)
		}
	}
	return own
}

// addrs are those at which the node can be reached.
func (n *Node) addrs() []netip.Addr {
	if n.Endpoint.IsValid() {
		return UsableAddrs([]netip.Addr{n.Endpoint})
	}
	return UsableAddrs(n.Addrs)
}

// UsableAddrs are those of a node's addresses that count: the first eight, without what cannot be an endpoint.
func UsableAddrs(addrs []netip.Addr) (all []netip.Addr) {
	for _, a := range addrs[:min(len(addrs), maxAddrs)] {
		if a = a.Unmap(); isUsableAddr(a) {
			all = append(all, a)
		}
	}
	return all
}

// isUsableAddr tells whether an address can be a node's among others.
func isUsableAddr(a netip.Addr) bool {
	limited := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return a.IsGlobalUnicast() && a.Zone() == "" && a != limited && (!a.Is4() || a.As4()[0] != 0)
}

// others are the nodes that take part in a mode, but the one with that name, the eldest first.
func others(self string, mode Mode, nodes []Node) []*Node {
	var all []*Node
	for i := range nodes {
		n := &nodes[i]
		if n.Name != self && !n.OptOut && n.Agent != nil && n.Agent.Mode == mode {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, compareAge)
	return all
}

func compareAge(a, b *Node) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// find returns the node of that name, or nil.
func find(name string, nodes []Node) *Node {
	if i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name }); i >= 0 {
		return &nodes[i]
	}
	return nil
}

// optedOut tells whether administrators want the node left alone.
func optedOut(name string, nodes []Node) bool {
	n := find(name, nodes)
	return n != nil && n.OptOut
}

// claims is who was there first with something.
type claims[K comparable] map[K]*Node

// add makes a thing the node's unless another has it, whom it then returns.
func (c claims[K]) claim(thing K, n *Node) (holder *Node) {
	if holder, taken := c[thing]; taken && holder != n {
		return holder
	}
	c[thing] = n
	return nil
}
