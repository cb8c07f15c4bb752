// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// peerTracker is the knowledge about peers that the engine does not hold.
type peerTracker struct {
	sentEndpoints mesh.SentEndpoints
	keyOwners     mesh.KeyOwners
	handshakes    *background              // that starts them; nil before the first start
	configured    map[noise.PublicKey]bool // the peers of the last configuration, nil before the first; true for external ones (RopewalkPeers)
}

// logForeign logs the removal of peers that another program added: the last configuration lacks them. Before the first configuration it
// logs nothing, because they may also be peers of an earlier agent.
func (t *peerTracker) logForeign(cfg Config, changes []config.Peer) {
	for i := range changes {
		if _, own := t.configured[changes[i].PublicKey]; changes[i].Remove && !own && t.configured != nil {
			cfg.Log.Warn("another program added a peer that is neither a node nor a RopewalkPeer, removing that peer", "interface", cfg.Tunnel, "peer", changes[i].PublicKey)
		}
	}
}

// noteConfigured records the peers of the configuration that the engine has.
func (t *peerTracker) noteConfigured(peers []mesh.Peer) {
	t.configured = make(map[noise.PublicKey]bool, len(peers))
	for i := range peers {
		t.configured[peers[i].Key] = peers[i].IsExternal()
	}
	t.sentEndpoints.Assume(peers)
}

// nodePeers returns all peers but the external ones.
func (t *peerTracker) nodePeers(all []config.PeerStatus) []config.PeerStatus {
	return slices.DeleteFunc(slices.Clone(all), func(p config.PeerStatus) bool { return t.configured[p.PublicKey] })
}

// countExternal returns the number of external peers.
func countExternal(peers []mesh.Peer) (n int) {
	for i := range peers {
		if peers[i].IsExternal() {
			n++
		}
	}
	return n
}
