// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// unmatchedGrace is how long a tunnel may lack a node that the agents already have, before that is reported. WireGuard sends no
// event when it gets the peer: the tunnel is checked again after this time.
const unmatchedGrace = 30 * time.Second

// noPeerMatched is a note about a tunnel that knows all other nodes by other addresses.
const noPeerMatched = "the WireGuard tunnel has no peer at any of the other nodes' addresses, so nothing is spread; if it uses other " +
	"addresses than the nodes' internal ones, set spec.endpoint"

// matchTunnel compares the plan with the tunnel's peers. Nodes whose endpoints the tunnel does not have are not counted, and
// are reported after a while. Without a tunnel, or while it has peers without an endpoint, nothing is concluded.
func (s *spreadReconciler) matchTunnel(r *result, plan *mesh.SpreadPlan, tunnels []spreader.Tunnel) {
	addrs, withoutEndpoint := s.peerAddrs(tunnels)
	if len(addrs) == 0 || len(plan.Peers) == 0 {
		return
	}
	matched := plan.MatchTunnel(func(a netip.Addr) bool { return addrs[a] })
	unmatched := len(plan.Peers) - matched
	if unmatched > 0 && (r.requeueAfter == 0 || r.requeueAfter > unmatchedGrace) {
		r.requeueAfter = unmatchedGrace
	}
	isLate := s.unmatchedPeers.update(plan.Peers)
	switch {
	case unmatched <= withoutEndpoint: // the unmatched nodes may be the peers without an endpoint
	case matched > 0:
		plan.ReportUnmatched(isLate)
	case slices.ContainsFunc(plan.Peers, func(p mesh.SpreadPeer) bool { return isLate(p.Node) }):
		r.notes = append(r.notes, noPeerMatched)
	}
}

// peerAddrs returns the addresses of the tunnel's peers, and the number of peers without an endpoint.
func (s *spreadReconciler) peerAddrs(tunnels []spreader.Tunnel) (addrs map[netip.Addr]bool, withoutEndpoint int) {
	addrs = map[netip.Addr]bool{}
	for _, t := range tunnels {
		if t.Port != s.port {
			continue
		}
		for _, p := range t.Peers {
			if p.Endpoint.IsValid() {
				addrs[p.Endpoint.Addr().Unmap()] = true
			} else {
				withoutEndpoint++
			}
		}
	}
	return addrs, withoutEndpoint
}

// unmatchedPeers holds, by node, since when the tunnel has had none of the node's endpoints.
type unmatchedPeers map[string]time.Time

// update records the nodes that are unmatched now. It returns a function that reports whether a node has been unmatched for
// long.
func (u *unmatchedPeers) update(peers []mesh.SpreadPeer) func(node string) bool {
	now, before := time.Now(), *u
	*u = unmatchedPeers{}
	for i := range peers {
		p := &peers[i]
		if !p.Unmatched {
			continue
		}
		since, known := before[p.Node]
		if !known {
			since = now
		}
		(*u)[p.Node] = since
	}
	current := *u
	return func(node string) bool {
		since, unmatched := current[node]
		return unmatched && now.Sub(since) >= unmatchedGrace
	}
}
