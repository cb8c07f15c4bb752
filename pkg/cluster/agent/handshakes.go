// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	// handshakeBurst is the number of peers that are probed at once at first. Then handshakeBatch more are probed after
	// each handshakeInterval (plus up to half of it), which makes 200 peers a second. If 500 of 5,000 nodes start at once,
	// each node has 20 handshakes a second.
	handshakeBurst    = 50
	handshakeBatch    = 10
	handshakeInterval = 40 * time.Millisecond
	// handshakeRetry is the time after a request that failed.
	handshakeRetry = time.Second
)

// startHandshakes makes an engine with a new key shake hands with its peers, in the given order, in a goroutine. Until a peer has completed a
// handshake, it may send with the keys of an earlier session, or to an earlier key. The first peers are probed at once and the others at a
// limited rate, because in a rollout many nodes start at the same time. Peers that the node sends to meanwhile need no probe.
func startHandshakes(e Engine, peers []noise.PublicKey, log *slog.Logger) *background {
	return startBackground(func(ctx context.Context) {
		failed := false
		for batch := handshakeBurst; len(peers) > 0 && ctx.Err() == nil; batch = handshakeBatch {
			next, pause := peers[:min(batch, len(peers))], wait.Jitter(handshakeInterval, 0.5)
			if _, err := e.Probe(next...); err == nil {
				peers, failed = peers[len(next):], false
			} else {
				pause = wait.Jitter(handshakeRetry, 0.5)
				if !failed {
					log.Warn("starting handshakes with peers failed, retrying: until then a handshake starts with the first packet to a peer",
						"peers_left", len(peers), "after", pause, "error", err)
				}
				failed = true
			}
			sleep(ctx, pause)
		}
	})
}

// handshakeOrder returns the keys of nodes in the order in which to probe them: the most recent handshake first. Nodes without
// one come in random order, so that agents that start together do not all begin with the same node.
func handshakeOrder(peers []mesh.Peer, had []config.PeerStatus) (keys []noise.PublicKey) {
	last := make(map[noise.PublicKey]time.Time, len(had))
	for i := range had {
		last[had[i].PublicKey] = had[i].LastHandshake
	}
	for i := range peers {
		if !peers[i].IsExternal() {
			keys = append(keys, peers[i].Key)
		}
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	slices.SortStableFunc(keys, func(a, b noise.PublicKey) int { return last[b].Compare(last[a]) })
	return keys
}
