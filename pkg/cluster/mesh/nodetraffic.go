// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"slices"
)

// UnencryptedNote begins an agent's notes about why it does not encrypt traffic between nodes. `ropewalk mesh` finds them by it.
const UnencryptedNote = "traffic between nodes is not encrypted: "

// NodeTraffic has the parameters of Tunnel for traffic to the addresses of other nodes, from nodes and from pods.
type NodeTraffic struct {
	// Encrypt carries it in the tunnel.
	Encrypt bool
	// Within has the prefixes of the nodes' addresses. No other address is routed into the tunnel.
	// Else a node that claims the address of a resolver would receive all other nodes' traffic to
	// it.
	Within []netip.Prefix
}

// routeNodes routes the addresses of other nodes into the tunnel, if they are peers that also
// encrypt traffic between nodes. Without Cleartext it routes the addresses of nodes that are no
// peers yet, for which the tunnel drops packets.
func (t *tunnelPlanner) routeNodes(nodes []Node) {
	if !t.cfg.Nodes.Encrypt {
		return
	}
	peers := t.peerNames()
	for i := range nodes {
		n := &nodes[i]
		switch {
		case n.Name == t.own.Name || n.OptOut || !peers[n.Name] && t.cfg.Cleartext:
		case peers[n.Name] && (!n.Agent.EncryptsNodes || !t.leadsInto(n)):
			t.plan.ClearNodes = append(t.plan.ClearNodes, n.Name)
		default:
			t.routeNode(n)
		}
	}
	slices.SortFunc(t.plan.NodeRoutes, comparePrefixes)
	slices.Sort(t.plan.ClearNodes)
}

// routeNode adds a node's InternalIPs to NodeRoutes. A node with an address that is not routed is
// among ClearNodes.
func (t *tunnelPlanner) routeNode(n *Node) {
	partial := len(n.Addrs) == 0
	for _, a := range UsableAddrs(n.Addrs) {
		within := slices.ContainsFunc(t.cfg.Nodes.Within, func(p netip.Prefix) bool { return p.Contains(a) })
		if !within || !slices.Contains(t.addrs[n.Name], a) {
			partial = true
			continue
		}
		p := netip.PrefixFrom(a, a.BitLen())
		t.plan.NodeRoutes = append(t.plan.NodeRoutes, p)
		if n.Agent != nil {
			t.setMTU(p, n)
		}
	}
	if partial {
		t.addProblem(n, "traffic to some of its addresses is not encrypted: they lie outside of nodeCIDRs of the RopewalkMesh, or spec.endpoint replaces them")
		t.plan.ClearNodes = append(t.plan.ClearNodes, n.Name)
	}
}

// peerNames returns the names of the nodes that are peers.
func (t *tunnelPlanner) peerNames() map[string]bool {
	names := make(map[string]bool, len(t.plan.Peers))
	for i := range t.plan.Peers {
		names[t.plan.Peers[i].Node] = true
	}
	return names
}
