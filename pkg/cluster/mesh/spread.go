// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// SpreadPlan is the desired state of a node in spread mode.
type SpreadPlan struct {
	Peers    []SpreadPeer // by name
	Problems []Problem
}

// SpreadPeer is another node. Packets from it are gathered.
type SpreadPeer struct {
	Node      string
	Endpoints []netip.AddrPort
	// Gather has the source ports that the peer spreads over. It contains no endpoint's port.
	Gather spread.Ports
	// Spread reports that flows are spread towards the peer.
	Spread bool
	// Plans are the source ports to use towards the peer, out of this node's own; empty: any.
	Plans Plans
	// Unmatched reports that the tunnel has no peer at any of the endpoints (see MatchTunnel), so that nothing is spread. The
	// peer stays in the plan but is not counted.
	Unmatched bool
}

// Spread returns a node's plan. known reports that other nodes have had time to learn this node's status. Until then they do
// not gather from it, even if they gather from others.
func Spread(self string, nodes []Node, known bool) SpreadPlan {
	var plan SpreadPlan
	if optedOut(self, nodes) {
		return plan
	}
	addrOwners, own := claims[netip.Addr]{}, spreadPorts(find(self, nodes))
	for _, n := range others(self, ModeSpread, nodes) {
		p := SpreadPeer{Node: n.Name, Spread: known && n.Agent.Gathers, Gather: spreadPorts(n)}
		for _, e := range n.endpoints() {
			if p.Gather.Contains(e.Port()) {
				plan.addProblem(n, "its spread ports %s contain the port of its endpoint %s", p.Gather, e)
				continue
			}
			if owner := addrOwners.claim(e.Addr(), n); owner != nil {
				plan.addProblem(n, "its endpoint %s belongs to node %s", e, owner.Name)
				continue
			}
			p.Endpoints = append(p.Endpoints, e)
		}
		if len(p.Endpoints) == 0 {
			plan.addProblem(n, "it has published no endpoint of its own")
			continue
		}
		p.Plans = plan.usablePlans(n, own)
		plan.Peers = append(plan.Peers, p)
	}
	slices.SortFunc(plan.Peers, func(a, b SpreadPeer) int { return cmp.Compare(a.Node, b.Node) })
	sortProblems(plan.Problems)
	return plan
}

// spreadPorts returns the source ports that a node published, or the default.
func spreadPorts(n *Node) spread.Ports {
	if n == nil || n.Agent == nil || n.Agent.Ports == (spread.Ports{}) {
		return spread.DefaultPorts
	}
	return n.Agent.Ports
}

// usablePlans returns the port plans of a node that a sender with the ports own can use. Other nodes gather only from the ports
// that this node has published. A plan must not leave them.
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

// MatchTunnel compares the plan with the tunnel's peers. It marks peers as Unmatched if the tunnel has none of their endpoints'
// addresses, and returns the number of the others. If all are unmatched, this node's tunnel uses other addresses than the
// nodes' internal ones, and no peer is to blame.
func (p *SpreadPlan) MatchTunnel(has func(netip.Addr) bool) (matched int) {
	for i := range p.Peers {
		peer := &p.Peers[i]
		if peer.Unmatched = !slices.ContainsFunc(peer.Endpoints, func(e netip.AddrPort) bool { return has(e.Addr()) }); !peer.Unmatched {
			matched++
		}
	}
	return matched
}

// ReportUnmatched adds a Problem for each peer that has been Unmatched for long.
func (p *SpreadPlan) ReportUnmatched(long func(node string) bool) {
	for i := range p.Peers {
		if peer := &p.Peers[i]; peer.Unmatched && long(peer.Node) {
			p.Problems = append(p.Problems, Problem{peer.Node, fmt.Sprintf("the tunnel has no peer at the node's endpoint %s: "+
				"nothing is spread towards it; if the tunnel uses another address of the node, set spec.endpoint", peer.Endpoints[0].Addr())})
		}
	}
	sortProblems(p.Problems)
}

// SpreadsTo returns the number of peers that flows are spread towards.
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
