// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// SpreadPlan is what a node does for the WireGuard that the cluster has.
type SpreadPlan struct {
	Peers    []SpreadPeer // by name
	Problems []Problem
}

// SpreadPeer is another node. What comes from it is gathered.
type SpreadPeer struct {
	Node      string
	Endpoints []netip.AddrPort
	// Gather holds the source ports that it spreads over, and no endpoint's port.
	Gather spread.Ports
	// Spread: flows are spread towards it, too.
	Spread bool
	// Plans are the ports to take towards it, out of this node's own; empty: any.
	Plans Plans
	// Unmatched: the tunnel has no peer at any of the endpoints (Meet), so that nothing comes of it. It stays a peer, and is not counted.
	Unmatched bool
}

// Spread returns what a node does. known tells that the others have had the time to learn of this one: until then they
// do not gather from it, even if they gather from those they know.
func Spread(self string, nodes []Node, known bool) SpreadPlan {
	var plan SpreadPlan
	if optedOut(self, nodes) {
		return plan
	}
	held, own := claims[netip.Addr]{}, spreadPorts(find(self, nodes))
	for _, n := range others(self, ModeSpread, nodes) {
		p := SpreadPeer{Node: n.Name, Spread: known && n.Agent.Gathers, Gather: spreadPorts(n)}
		for _, e := range n.endpoints() {
			if p.Gather.Contains(e.Port()) {
				plan.addProblem(n, "it spreads over %s, which hold the port of its endpoint %s", p.Gather, e)
				continue
			}
			if holder := held.claim(e.Addr(), n); holder != nil {
				plan.addProblem(n, "its endpoint %s is that of %s", e, holder.Name)
				continue
			}
			p.Endpoints = append(p.Endpoints, e)
		}
		if len(p.Endpoints) == 0 {
			plan.addProblem(n, "it tells of no endpoint that is its own")
			continue
		}
		p.Plans = plan.usablePlans(n, own)
		plan.Peers = append(plan.Peers, p)
	}
	slices.SortFunc(plan.Peers, func(a, b SpreadPeer) int { return cmp.Compare(a.Node, b.Node) })
	sortProblems(plan.Problems)
	return plan
}

// spreadPorts are the source ports that a node says it spreads over, or those that all do who say nothing.
func spreadPorts(n *Node) spread.Ports {
	if n == nil || n.Agent == nil || n.Agent.Ports == (spread.Ports{}) {
		return spread.DefaultPorts
	}
	return n.Agent.Ports
}

// usablePlans returns those of a node's plans that one can follow who spreads over own. What others gather from this node is what
// it told, so a plan leads to no port beyond.
func (p *SpreadPlan) usablePlans(n *Node, own spread.Ports) Plans {
	plans := n.Agent.Plans
	for _, ports := range []*[]uint16{&plans.V4, &plans.V6} {
		if why := planProblem(*ports, own); why != "" {
			p.addProblem(n, "%s", why)
			*ports = nil
		}
	}
	return plans
}

// MatchTunnel compares the plan with the tunnel that is there, and returns how many of the peers are the tunnel's, too. Who has none
// of its endpoints among the addresses of the tunnel's peers is Apart. Where that is everybody, it is nobody's fault but this
// node's: its tunnel uses other addresses than the nodes' internal ones.
func (p *SpreadPlan) MatchTunnel(has func(netip.Addr) bool) (met int) {
	for i := range p.Peers {
		peer := &p.Peers[i]
		if peer.Unmatched = !slices.ContainsFunc(peer.Endpoints, func(e netip.AddrPort) bool { return has(e.Addr()) }); !peer.Unmatched {
			met++
		}
	}
	return met
}

// ReportUnmatched makes a Problem of each peer that is Apart and has been for long.
func (p *SpreadPlan) ReportUnmatched(long func(node string) bool) {
	for i := range p.Peers {
		if peer := &p.Peers[i]; peer.Unmatched && long(peer.Node) {
			p.Problems = append(p.Problems, Problem{peer.Node, fmt.Sprintf("the tunnel has no peer at %s, where the node says it is: "+
				"nothing is spread there; if the tunnel has another address of it, name that in spec.endpoint", peer.Endpoints[0].Addr())})
		}
	}
	sortProblems(p.Problems)
}

// SpreadsTo is the number of peers that flows are spread towards.
func (p *SpreadPlan) SpreadsTo() (n int) {
	for i := range p.Peers {
		if p.Peers[i].Spread && !p.Peers[i].Unmatched {
			n++
		}
	}
	return n
}

func (p *SpreadPlan) addProblem(n *Node, format string, args ...any) {
	p.Problems = append(p.Problems, Problem{n.Name, fmt.Sprintf(format, args...)})
}

func sortProblems(all []Problem) {
	slices.SortFunc(all, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason)) })
}
