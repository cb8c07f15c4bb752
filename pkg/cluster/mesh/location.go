// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Nodes of one location are peers of each other. Gateways carry traffic between locations: an ordinary node reaches all other locations by
// one gateway of its own, and a gateway reaches the ordinary nodes of another location by one gateway there. Gateways of all locations are
// peers. A node without a location, or in one without a gateway, is a peer of all.
//
// All nodes choose the same gateways, from the API's objects alone. Packets return the way they went: each node accepts a source from one
// peer only. So packets cannot loop either, even while nodes disagree. To pass a node twice, a packet would have to come from another peer.

// NodeBehind is a node that this node reaches by a gateway.
type NodeBehind struct {
	Node    string          `json:"node"`
	Key     noise.PublicKey `json:"key"`
	NextKey noise.PublicKey `json:"nextKey,omitzero"`
}

// coGatewayKeepalive is the persistent keepalive between gateways of one location, in seconds: each finds out whether it receives
// anything from the others (GatewayMonitor).
const coGatewayKeepalive = 3

// CoGatewayKeepalive returns the persistent keepalive between gateways of one location; nodes is that of all nodes, 0 for none.
func CoGatewayKeepalive(nodes uint16) uint16 {
	if nodes == 0 {
		return coGatewayKeepalive
	}
	return min(nodes, coGatewayKeepalive)
}

// locations are the locations that have a gateway.
type locations struct {
	own        string             // this node's; empty: it is in none, or in one without a gateway
	isGateway  bool               // this node is a gateway
	gateways   map[string][]*Node // by location
	active     map[string]*Node   // the active gateways, by location
	isGateways map[*Node]bool
	behind     map[string][]*Node // nodes that this node reaches by a gateway, by the gateway's name
}

// findLocations finds the gateways of all locations, and the active one of each. others are the other nodes in mode mesh.
func (t *tunnelPlanner) findLocations(others []*Node) locations {
	l := locations{gateways: map[string][]*Node{}, active: map[string]*Node{}, isGateways: map[*Node]bool{}, behind: map[string][]*Node{}}
	for _, n := range others {
		if n.GatewayOf != "" && !n.Agent.Forwards {
			t.addProblem(n, "it does not forward for its location %s, so it is no gateway", n.GatewayOf)
		}
		l.addGateway(n, t.keys)
	}
	if t.own.Agent != nil && t.own.Agent.Mode == ModeMesh {
		l.addGateway(t.own, t.keys)
	}
	for name, gateways := range l.gateways {
		l.active[name] = activeGateway(gateways)
	}
	own := t.own.Location()
	if t.own.Agent == nil {
		own = cmp.Or(own, t.cfg.Location)
	}
	if l.isGateway = l.isGateways[t.own]; l.active[own] != nil {
		l.own = own
	}
	return l
}

// addGateway adds a node if it is a gateway that others can use.
func (l *locations) addGateway(n *Node, keys claims[noise.PublicKey]) {
	if n.GatewayOf != "" && n.Location() != "" && n.Agent.Forwards && !n.Agent.Key.IsZero() && keys[n.Agent.Key] == n {
		l.gateways[n.GatewayOf] = append(l.gateways[n.GatewayOf], n)
		l.isGateways[n] = true
	}
}

// activeGateway returns the gateway that carries the traffic of a location with others: the one that the fewest others do not reach, of
// several the first by name. The status of a gateway that is down may be old: the others outvote it.
func activeGateway(gateways []*Node) *Node {
	missing := map[string]int{}
	for _, g := range gateways {
		for _, name := range g.Agent.Unreachable {
			if name != g.Name {
				missing[name]++
			}
		}
	}
	return slices.MinFunc(gateways, func(a, b *Node) int {
		return cmp.Or(cmp.Compare(missing[a.Name], missing[b.Name]), cmp.Compare(a.Name, b.Name))
	})
}

// Location returns the node's location, or "". What administrators set precedes what its agent claims: a gateway must not choose for whom
// it forwards. An agent that publishes none knows none, for example an older one: it has all nodes as peers.
func (n *Node) Location() string {
	if n.Agent == nil {
		return n.GatewayOf
	}
	if n.Agent.Location == "" {
		return ""
	}
	return cmp.Or(n.GatewayOf, n.Agent.Location)
}

// via returns the gateway by which this node reaches another one in mode mesh; nil: they are peers.
func (l *locations) via(n *Node) *Node {
	there := l.active[n.Location()]
	switch {
	case l.own == "" || there == nil || n.Location() == l.own:
		return nil
	case !l.isGateway:
		return l.active[l.own]
	case l.isGateways[n]:
		return nil
	}
	return there
}

// path returns the gateways that forward for this node to another one.
func (l *locations) path(n *Node) (gateways []*Node) {
	via := l.via(n)
	if via == nil {
		return nil
	}
	gateways = append(gateways, via)
	if !l.isGateway && !l.isGateways[n] {
		gateways = append(gateways, l.active[n.Location()])
	}
	return gateways
}

// isCoGateway reports whether this node and another one are gateways of the same location.
func (l *locations) isCoGateway(n *Node) bool {
	return l.isGateway && l.isGateways[n] && n.GatewayOf == l.own
}

// mtu returns the smallest known MTU of the tunnels of another node and of the gateways on the way; 0: none is known.
func (l *locations) mtu(n *Node) int {
	mtu := n.Agent.MTU
	for _, g := range l.path(n) {
		if m := g.Agent.MTU; m > 0 && (mtu == 0 || m < mtu) {
			mtu = m
		}
	}
	return mtu
}

// encrypt reports whether another node and the gateways on the way encrypt traffic between nodes.
func (l *locations) encrypt(n *Node) bool {
	return n.Agent.EncryptsNodes && !slices.ContainsFunc(l.path(n), func(g *Node) bool { return !g.Agent.EncryptsNodes })
}

// addBehind gives the gateways among the peers the allowed IPs of the nodes behind them. It is called when all nodes are peers or behind one.
func (t *tunnelPlanner) addBehind() {
	for i := range t.plan.Peers {
		p := &t.plan.Peers[i]
		nodes := t.locations.behind[p.Node]
		if p.isReplacement() || len(nodes) == 0 {
			continue
		}
		for _, n := range nodes {
			next, _ := t.nextKey(n)
			p.Behind = append(p.Behind, NodeBehind{n.Name, n.Agent.Key, next})
			p.AllowedIPs = append(p.AllowedIPs, t.allowedIPs(n)...)
		}
		p.AllowedIPs = sortedPrefixes(p.AllowedIPs)
		slices.SortFunc(p.Behind, func(a, b NodeBehind) int { return cmp.Compare(a.Node, b.Node) })
	}
}

// sortedPrefixes sorts prefixes in place and returns the distinct ones.
func sortedPrefixes(all []netip.Prefix) []netip.Prefix {
	slices.SortFunc(all, comparePrefixes)
	return slices.Compact(all)
}
