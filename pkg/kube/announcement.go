// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// announcement remembers since when the others can know from where this node spreads.
type announcement struct {
	pending bool
	since   time.Time
}

// literal tells whether that is long enough, or how long to wait. What the API has is compared with what is about to be told: a
// node that has another address or other ports now, or was in another mode, is not gathered from yet. What it had when the agent
// began is known.
func (n *announcement) propagated(told, now *v1alpha1.NodeStatus, learn time.Duration) (bool, time.Duration) {
	same := len(now.Endpoints) > 0 && // ropewalkNodeUID a node that is nowhere nobody gathers
		told.Mode == v1alpha1.ModeSpread && told.SpreadPorts != nil && *told.SpreadPorts == *now.SpreadPorts &&
		sameEndpoints(told.Endpoints, now.Endpoints)
	switch {
	case !same:
		n.pending = true
		return false, 0
	case n.pending:
		n.pending, n.since = false, time.Now()
	}
	wait := learn - time.Since(n.since)
	return wait <= 0, max(wait, 0)
}

// sameEndpoints compares endpoints in any order: that of a Node's addresses may change at any time.
func sameEndpoints(a, b []v1alpha1.Endpoint) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// unmatchedGrace is how long a tunnel may take to have a node that the agents have already, before that is worth a word: it tells
// nobody when it does.
const unmatchedGrace = 30 * time.Second

// noPeerMatched says that the tunnel knows the other nodes by other addresses.
const noPeerMatched = "the WireGuard tunnel has no peer at any of the other nodes' addresses, so nothing is spread; if it uses other " +
	"addresses than the nodes' internal ones, name those in spec.endpoint"

// matchTunnel takes out of the count those whom the tunnel does not have where their agents say. Of a tunnel that is not found, or has
// peers of which it does not know yet where they are, nothing is known.
func (s *spreadReconciler) matchTunnel(r *result, plan *mesh.SpreadPlan, tunnels []adopt.Tunnel) {
	there, unplaced := s.peerAddrs(tunnels)
	if len(there) == 0 || len(plan.Peers) == 0 {
		return
	}
	met := plan.MatchTunnel(func(a netip.Addr) bool { return there[a] })
	if apart := len(plan.Peers) - met; apart > 0 && (r.requeueAfter == 0 || r.requeueAfter > unmatchedGrace) {
		r.requeueAfter = unmatchedGrace
	}
	stood := s.unmatchedPeers.update(plan.Peers)
	switch {
	case len(plan.Peers)-met <= unplaced: // those may be they
	case met > 0:
		plan.ReportUnmatched(stood)
	case slices.ContainsFunc(plan.Peers, func(p mesh.SpreadPeer) bool { return stood(p.Node) }):
		r.notes = append(r.notes, noPeerMatched)
	}
}

// peerAddrs are where the tunnel has its peers, and of how many it does not know.
func (s *spreadReconciler) peerAddrs(tunnels []adopt.Tunnel) (there map[netip.Addr]bool, unplaced int) {
	there = map[netip.Addr]bool{}
	for _, t := range tunnels {
		if t.Port != s.port {
			continue
		}
		for _, p := range t.Peers {
			if p.Endpoint.IsValid() {
				there[p.Endpoint.Addr().Unmap()] = true
			} else {
				unplaced++
			}
		}
	}
	return there, unplaced
}

// unmatchedPeers remembers since when the tunnel has had nodes nowhere that they say.
type unmatchedPeers map[string]time.Time

// update takes note of those that are so now, and returns what tells whether a node has been for long.
func (a *unmatchedPeers) update(peers []mesh.SpreadPeer) func(node string) bool {
	now, before := time.Now(), *a
	*a = unmatchedPeers{}
	for i := range peers {
		p := &peers[i]
		if !p.Unmatched {
			continue
		}
		since, already := before[p.Node]
		if !already {
			since = now
		}
		(*a)[p.Node] = since
	}
	current := *a
	return func(node string) bool {
		since, is := current[node]
		return is && now.Sub(since) >= unmatchedGrace
	}
}
