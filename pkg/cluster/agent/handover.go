// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// handoverWatcher moves a peer's allowed IPs to its next key as soon as the peer has used that key for a handshake.
type handoverWatcher struct {
	handover  *background       // polls the engine; nil: no peer has changed its key
	handovers mesh.HandoverPoll // while the goroutine runs, it alone uses it
}

// handoverPausePerKey is the least pause between polls for each key that is polled: thousands of nodes may change their keys. Engine and agent
// need some microseconds for a key. The time that a poll takes says nothing: with busy CPUs it is spent waiting.
const handoverPausePerKey = 100 * time.Microsecond

// startHandover starts the goroutine if any peer of the plan changes its key.
func (m *meshReconciler) startHandover(peers []mesh.Peer) {
	if m.handovers.Interval(time.Now(), peers) == 0 {
		return
	}
	engine, keys := m.engine, changingKeys(peers)
	pause := time.Duration(len(keys)) * handoverPausePerKey
	m.handover = startBackground(func(ctx context.Context) {
		for {
			interval := m.handovers.Interval(time.Now(), peers)
			if interval == 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(interval, pause)):
			}
			st, err := engine.StatusOf(keys...)
			if err != nil {
				continue // there is no engine at the moment
			}
			if moves := mesh.AllowedIPMoves(peers, st.Peers); len(moves) > 0 {
				m.logMoves(movedNodes(moves, peers), engine.Configure(config.Device{Peers: moves}))
			}
		}
	})
}

// changingKeys returns the present and the next key of each node that changes its key.
func changingKeys(peers []mesh.Peer) (keys []noise.PublicKey) {
	for i := range peers {
		if p := &peers[i]; !p.Replaces.IsZero() {
			keys = append(keys, p.Key, p.Replaces)
		}
	}
	return keys
}

// movedNodes returns the names of the nodes whose allowed IPs move.
func movedNodes(moves []config.Peer, peers []mesh.Peer) (names []string) {
	owners := mesh.KeyOwnersOf(peers)
	for i := range moves {
		names = append(names, owners[moves[i].PublicKey])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (m *meshReconciler) logMoves(nodes []string, err error) {
	names := nodes[:min(len(nodes), maxLoggedNodes)]
	if err != nil {
		m.cfg.Log.Warn("moving the allowed IPs of nodes to their new keys failed, retrying: traffic for these nodes may be lost meanwhile", "nodes", len(nodes), "names", names, "error", err)
		return
	}
	m.cfg.Log.Info("allowed IPs of nodes moved to the keys of their latest handshakes", "nodes", len(nodes), "names", names)
}
