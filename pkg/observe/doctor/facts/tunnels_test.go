// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// TestAllPeerNodesAreFacts has more nodes than peers whose path MTU is looked up, and a peer that is no node.
func TestAllPeerNodesAreFacts(t *testing.T) {
	const nodes = maxPeers + 2
	st := config.Status{FwMark: NodeTrafficMark}
	for i := range nodes + 1 {
		addr := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		p := config.PeerStatus{Endpoint: config.Endpoint{AddrPort: netip.AddrPortFrom(addr, 51820)}}
		if i > 0 {
			p.AllowedIPs = []netip.Prefix{netip.PrefixFrom(addr, 32)}
		}
		st.Peers = append(st.Peers, p)
	}
	var with, without Tunnel
	with.setStatus(st)
	st.FwMark = 0
	without.setStatus(st)
	if len(with.Nodes) != nodes || len(with.Peers) != maxPeers || len(without.Nodes) != 0 {
		t.Errorf("got %d nodes and %d peers, %d nodes without the mark, want %d, %d, 0", len(with.Nodes), len(with.Peers), len(without.Nodes), nodes, maxPeers)
	}
}
