// SPDX-License-Identifier: Apache-2.0

// Package mesh computes the desired state of a node in a cluster. It has the peers
// in spread mode (Spread), WireGuard peers and routes in mesh mode (Tunnel), and changes from the
// current state (Diff). It does no I/O. Begin reading in this file, then tunnel.go or spread.go;
// peers outside of the cluster are in external.go.
//
// All functions are pure functions of the cluster's objects. They are safe for concurrent use, and do not depend on the order
// of the nodes.
//
// Trust: an attacker who controls a node can write its kubelet's fields (addresses, at times pod CIDRs) and its agent's fields
// (keys, endpoints, ports). Therefore only values that concern the node itself are accepted. Endpoints that are not the node's
// addresses are ignored. An address among another node's pods is rejected. A value that no device accepts is a Problem of that
// node only. Of two nodes that claim one value, the older keeps it, so that a new node takes nothing away. Of two nodes that
// claim one key, its known owner keeps it, so that an older node cannot take it either.
//
// Not for other programs: it may change without notice.
package mesh

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Mode is the mode of operation of an agent.
type Mode string

// The modes.
const (
	ModeSpread Mode = "spread" // spread and gather for the cluster's WireGuard
	ModeMesh   Mode = "mesh"   // run the cluster's WireGuard
)

// Node is the cluster's knowledge of one node.
type Node struct {
	Name    string // unique
	Created time.Time
	// Addrs are the node's addresses, the preferred one first.
	Addrs []netip.Addr
	// Endpoint is the address that administrators set; invalid: Addrs apply.
	Endpoint netip.Addr
	// Port is the tunnel's port that administrators set; 0: none.
	Port     uint16
	PodCIDRs []netip.Prefix
	// OptOut reports that administrators excluded the node.
	OptOut bool
	// Agent is the status of the node's agent; nil: there is none.
	Agent *Agent
}

// Agent is the published status of a node's agent.
type Agent struct {
	Mode      Mode
	Key       noise.PublicKey // zero: none yet
	NextKey   noise.PublicKey // accepted beside Key during a key change; zero: none
	Endpoints []netip.AddrPort
	// Ports are the source ports that the node spreads over; empty: not published.
	Ports spread.Ports
	// Plans are the source ports that others should use towards the node.
	Plans Plans
	// MTU of the node's tunnel in bytes; 0: not published.
	MTU int
	// Gathers reports that others may spread towards the node.
	Gathers bool
	// EncryptsNodes reports that the node carries traffic between nodes in the tunnel.
	EncryptsNodes bool
}

// Problem is a reason to ignore a part of a node's status.
type Problem struct {
	Node   string
	Reason string
}

// maxAddrs is how many of a node's addresses are used.
const maxAddrs = 8

// endpoints returns the published endpoints that are the node's, at most one per address.
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

// addrs returns the addresses at which the node can be reached.
func (n *Node) addrs() []netip.Addr {
	if n.Endpoint.IsValid() {
		return UsableAddrs([]netip.Addr{n.Endpoint})
	}
	return UsableAddrs(n.Addrs)
}

// UsableAddrs returns the valid ones among a node's first eight addresses.
func UsableAddrs(addrs []netip.Addr) (all []netip.Addr) {
	for _, a := range addrs[:min(len(addrs), maxAddrs)] {
		if a = a.Unmap(); isUsableAddr(a) {
			all = append(all, a)
		}
	}
	return all
}

// isUsableAddr reports whether an address can be a node's endpoint.
func isUsableAddr(a netip.Addr) bool {
	limited := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return a.IsGlobalUnicast() && a.Zone() == "" && a != limited && (!a.Is4() || a.As4()[0] != 0)
}

// others returns the nodes of a mode except the one with the given name, the oldest first.
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

// optedOut reports whether administrators excluded the node.
func optedOut(name string, nodes []Node) bool {
	n := find(name, nodes)
	return n != nil && n.OptOut
}

// claims holds the owner of each value.
type claims[K comparable] map[K]*Node

// claim makes a node the owner of a value, unless another node is. It then returns that one.
func (c claims[K]) claim(value K, n *Node) (owner *Node) {
	if owner, taken := c[value]; taken && owner != n {
		return owner
	}
	c[value] = n
	return nil
}
