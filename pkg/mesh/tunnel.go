// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/ropewalk/ropewalk/pkg/noise"
)

// TunnelConfig is what of a Tunnel is the same for all nodes.
type TunnelConfig struct {
	// Bypass are addresses that are never reached through the tunnel, wherever they lie: those of the API server, over
	// which nodes learn each other's keys.
	Bypass []netip.Addr
	// Cleartext lets what is for pods of a node that cannot be a peer leave unencrypted. Otherwise it goes into the tunnel,
	// which drops it and counts it.
	Cleartext bool
	// Pods are prefixes of the cluster's pods, those of nodes that nobody knows yet included. They go into the tunnel. No
	// node has pods outside of them. None: any node may have any that it is given.
	Pods []netip.Prefix
	// KeyOwners is which node has which key, as far as that is known from before. It keeps it while it says so.
	KeyOwners KeyOwners
}

// KeyOwners is who has a key, by name.
type KeyOwners map[noise.PublicKey]string

// TunnelPlan is a node's tunnel to all others.
type TunnelPlan struct {
	Peers []Peer // by key
	// Routes go into the tunnel, in order, none of them twice.
	Routes []netip.Prefix
	// Exempt are the parts of Routes that do not, in order, none of them twice: what is this node's own, what the tunnel
	// itself and the API need, and pods of nodes that opted out.
	Exempt []netip.Prefix
	// MTU is that of the other end of those Routes whose node has told it, in bytes, and no less than MinMTU.
	MTU      map[netip.Prefix]int
	Problems []Problem // of other nodes
	Notes    []string  // what is not as it should be with this node itself: the others see it so, too
}

// Peer is another node's key. Nothing of it is secret.
type Peer struct {
	Node string          `json:"node"`
	Key  noise.PublicKey `json:"key"`
	// Endpoint is where it is reached; invalid: that is not known, and where it was heard last is as good.
	Endpoint   netip.AddrPort `json:"endpoint,omitzero"`
	AllowedIPs []netip.Prefix `json:"allowedIPs,omitempty"` // in order; none for a key that is not in use yet
	// Replaces is the key of the same node that this one takes the place of, zero for none. See Shift.
	Replaces noise.PublicKey `json:"succeeds,omitzero"`
}

// KeyOwnersOf returns who has which key by a plan's peers.
func KeyOwnersOf(peers []Peer) KeyOwners {
	h := make(KeyOwners, len(peers))
	for i := range peers {
		h[peers[i].Key] = peers[i].Node
	}
	return h
}

// ErrUnknownNode says that the node itself is not among the nodes: what it should have cannot be told.
var ErrUnknownNode = errors.New("the cluster has no such node")

// Tunnel returns a node's tunnel. The error is ErrUnknownNode.
func Tunnel(self string, nodes []Node, cfg TunnelConfig) (TunnelPlan, error) {
	own := find(self, nodes)
	if own == nil {
		return TunnelPlan{}, fmt.Errorf("%w: %s", ErrUnknownNode, self)
	}
	if own.OptOut {
		return TunnelPlan{}, nil
	}
	t := &tunnelPlanner{cfg: cfg, own: own, pods: assignPrefixes(nodes, cfg.Pods), addrs: map[string][]netip.Addr{}}
	t.plan.MTU, t.plan.Notes = map[netip.Prefix]int{}, t.pods[self].problems
	t.podOwners = newPodOwners(t.pods)
	all := others(self, ModeMesh, nodes)
	t.assignKeys(all)
	t.assignAddrs(nodes)
	for _, n := range all {
		t.addPeer(n)
	}
	if !cfg.Cleartext {
		t.routeAllPods(self, nodes)
	}
	t.addExemptions(nodes)
	p := &t.plan
	slices.SortFunc(p.Peers, func(a, b Peer) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	sortProblems(p.Problems)
	return *p, nil
}

type tunnelPlanner struct {
	cfg       TunnelConfig
	own       *Node
	keys      claims[noise.PublicKey]
	pods      map[string]podPrefixes  // by node
	addrs     map[string][]netip.Addr // by node, those that nothing speaks against
	podOwners *podOwners
	plan      TunnelPlan
}

func (t *tunnelPlanner) addProblem(n *Node, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if n.Name == t.own.Name {
		t.plan.Notes = append(t.plan.Notes, why)
		return
	}
	t.plan.Problems = append(t.plan.Problems, Problem{n.Name, why})
}

// assignKeys gives each key to one node: this node's own stay its own, then who is known to have it keeps it, then a key in
// use comes before one that is to be. Nodes are given the eldest first.
func (t *tunnelPlanner) assignKeys(all []*Node) {
	t.keys = claims[noise.PublicKey]{}
	if a := t.own.Agent; a != nil {
		t.claimKey(a.Key, t.own)
		t.claimKey(a.NextKey, t.own)
	}
	for _, n := range all {
		for _, key := range []noise.PublicKey{n.Agent.Key, n.Agent.NextKey} {
			if t.cfg.KeyOwners[key] == n.Name {
				t.claimKey(key, n)
			}
		}
	}
	for _, n := range all {
		t.claimKey(n.Agent.Key, n)
	}
	for _, n := range all {
		t.claimKey(n.Agent.NextKey, n)
	}
}

func (t *tunnelPlanner) claimKey(key noise.PublicKey, n *Node) {
	if !key.IsZero() {
		t.keys.claim(key, n)
	}
}

// assignAddrs gives each node those of its addresses that are not another's pods, or another's address.
func (t *tunnelPlanner) assignAddrs(nodes []Node) {
	sorted := make([]*Node, len(nodes))
	for i := range nodes {
		sorted[i] = &nodes[i]
	}
	slices.SortFunc(sorted, compareAge)
	held := claims[netip.Addr]{}
	for _, n := range sorted {
		for _, a := range n.addrs() {
			if holder := t.podOwners.owner(a); holder != "" && holder != n.Name {
				t.addProblem(n, "its address %s is one of the pods of %s", a, holder)
			} else if held.claim(a, n) == nil {
				t.addrs[n.Name] = append(t.addrs[n.Name], a)
			}
		}
	}
}

// addPeer makes a node a peer, if it can be one.
func (t *tunnelPlanner) addPeer(n *Node) {
	pods := t.pods[n.Name]
	for _, why := range pods.problems {
		t.addProblem(n, "%s", why)
	}
	if n.Agent.Key.IsZero() {
		t.addProblem(n, "it has not told its key yet")
		return
	}
	if holder := t.keys[n.Agent.Key]; holder != n {
		t.addProblem(n, "its key is that of %s: a copied disk, perhaps; give it another", holder.Name)
		return
	}
	endpoint, ok := t.endpoint(n)
	if !ok {
		t.addProblem(n, "it tells of no endpoint that is its own, and of a kind that this node has an address of")
	}
	p := Peer{Node: n.Name, Key: n.Agent.Key, Endpoint: endpoint, AllowedIPs: t.allowedIPs(n)}
	t.plan.Peers = append(t.plan.Peers, p)
	t.plan.Routes = append(t.plan.Routes, pods.accepted...)
	for _, c := range pods.accepted {
		if n.Agent.MTU > 0 {
			t.plan.MTU[c] = max(n.Agent.MTU, MinMTU)
		}
	}
	next := n.Agent.NextKey
	if next.IsZero() || next == n.Agent.Key {
		return
	}
	if holder := t.keys[next]; holder != n {
		t.addProblem(n, "its next key is that of %s", holder.Name)
		return
	}
	t.plan.Peers = append(t.plan.Peers, Peer{Node: n.Name, Key: next, Endpoint: endpoint, Replaces: n.Agent.Key})
}

// diffAllowedIPs are what may come from a node: its pods', and what it says itself, to pods that called it at its own address.
func (t *tunnelPlanner) allowedIPs(n *Node) []netip.Prefix {
	all := slices.Clone(t.pods[n.Name].accepted)
	for _, a := range t.addrs[n.Name] {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(all, comparePrefixes)
	return slices.Compact(all)
}

// endpoint returns the first that this node can send to.
func (t *tunnelPlanner) endpoint(n *Node) (netip.AddrPort, bool) {
	for _, e := range n.endpoints() {
		sameKind := func(a netip.Addr) bool { return a.Unmap().Is4() == e.Addr().Is4() }
		if slices.Contains(t.addrs[n.Name], e.Addr()) && slices.ContainsFunc(t.own.Addrs, sameKind) {
			return e, true
		}
	}
	return netip.AddrPort{}, false
}

// routeAllPods routes what is for pods of other nodes into the tunnel, whether or not they are peers.
func (t *tunnelPlanner) routeAllPods(self string, nodes []Node) {
	for i := range nodes {
		if n := &nodes[i]; n.Name != self && !n.OptOut {
			t.plan.Routes = append(t.plan.Routes, t.pods[n.Name].accepted...)
		}
	}
	t.plan.Routes = append(t.plan.Routes, t.cfg.Pods...)
}

// addExemptions puts the routes in order, and finds what of them does not go into the tunnel.
func (t *tunnelPlanner) addExemptions(nodes []Node) {
	p := &t.plan
	slices.SortFunc(p.Routes, comparePrefixes)
	p.Routes = slices.Compact(p.Routes)
	var all []netip.Prefix
	for _, c := range t.own.PodCIDRs {
		all = append(all, c.Masked())
	}
	for i := range nodes {
		if nodes[i].OptOut {
			all = append(all, t.pods[nodes[i].Name].accepted...)
		}
		for _, a := range t.addrs[nodes[i].Name] {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, a := range t.cfg.Bypass {
		all = append(all, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	}
	slices.SortFunc(all, comparePrefixes)
	p.Exempt = within(p.Routes, slices.Compact(all))
}

// within returns those of all that are within any route, in their order.
func within(routes, all []netip.Prefix) (within []netip.Prefix) {
	var table bart.Lite
	for _, r := range routes {
		table.Insert(r)
	}
	for _, p := range all {
		if table.LookupPrefix(p) {
			within = append(within, p)
		}
	}
	return within
}
