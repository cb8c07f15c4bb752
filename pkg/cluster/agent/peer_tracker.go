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
	handshakes    *handshakeTrigger // nil: none was started
	unresponsive  unresponsive
	configured    map[noise.PublicKey]bool // keys of the engine's peers as last configured; true: the peer is external
}

// logForeign logs the removal of peers that this agent did not configure. Peers that an earlier agent left are as unknown as those of
// other programs, so nothing is logged before the first configuration.
func (t *peerTracker) logForeign(cfg Config, changes []config.Peer) {
	for i := range changes {
		if _, own := t.configured[changes[i].PublicKey]; changes[i].Remove && !own && t.configured != nil {
			cfg.Log.Warn("removing a peer that is neither a node nor a RopewalkPeer: another program added it", "interface", cfg.Tunnel, "peer", changes[i].PublicKey)
		}
	}
}

// noteConfigured records the peers that the engine is to have.
func (t *peerTracker) noteConfigured(peers []mesh.Peer) {
	t.configured = make(map[noise.PublicKey]bool, len(peers))
	for i := range peers {
		t.configured[peers[i].Key] = peers[i].IsExternal()
	}
}

// nodePeers returns the peers without the external ones.
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
