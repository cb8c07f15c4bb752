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
	// keepaliveSeconds is the keepalive interval. The engine sends the first one at once.
	keepaliveSeconds = 25
	// handshakeBurst is the number of peers that are triggered at once at first. Then handshakeBatch more are triggered after
	// each handshakeInterval (plus up to half of it), which makes 200 peers a second. If 500 of 5,000 agents start at once,
	// each node has 20 handshakes a second.
	handshakeBurst    = 50
	handshakeBatch    = 10
	handshakeInterval = 40 * time.Millisecond
	// keepaliveDuration is how long a peer keeps its keepalive. The engine retries a handshake without it.
	keepaliveDuration = time.Second
)

// keepaliveBatch are peers that have a keepalive.
type keepaliveBatch struct {
	peers []noise.PublicKey
	since time.Time
}

// triggerHandshakes makes an engine start handshakes with its peers, in the given order. To that end, it sets a persistent keepalive on each
// peer for a moment, in a goroutine that ends with the engine. It leaves each peer with the given persistent keepalive, in seconds. Until a peer has
// completed a handshake, it may send with the keys of an earlier engine, or to an earlier key. The first peers are triggered at once and the
// others at a limited rate, because in a rollout many agents start at the same time. Peers that the node sends to meanwhile need no trigger.
func triggerHandshakes(e Engine, peers []noise.PublicKey, keepalive uint16, log *slog.Logger) *background {
	return startBackground(func(ctx context.Context) {
		q := handshakeQueue{peers: peers, keepalive: keepalive}
		for batch := handshakeBurst; len(q.peers) > 0 || len(q.active) > 0; batch = handshakeBatch {
			pause := wait.Jitter(handshakeInterval, 0.5)
			if err := q.step(e, batch); err != nil {
				pause = wait.Jitter(keepaliveDuration, 0.5)
				if !q.lastFailed {
					log.Warn("starting handshakes with peers failed, retrying: until then a handshake starts with the first packet to a peer",
						"peers_left", len(q.peers), "after", pause, "error", err)
				}
				q.lastFailed = true
			} else {
				q.lastFailed = false
			}
			select {
			case <-ctx.Done():
				return
			case <-e.Done():
				return
			case <-time.After(pause):
			}
		}
	})
}

// handshakeQueue is the progress of triggerHandshakes.
type handshakeQueue struct {
	peers      []noise.PublicKey // still to be triggered
	active     []keepaliveBatch  // oldest first
	keepalive  uint16            // of peers that have been triggered, in seconds
	lastFailed bool              // the last change failed and was logged
}

// step removes the keepalives of the oldest batch once they have lasted, and triggers the next peers. After an error the queue
// is unchanged, so that each keepalive is removed in the end.
func (q *handshakeQueue) step(e Engine, batch int) error {
	var changes []config.Peer
	peers, active := q.peers, q.active
	if len(active) > 0 && time.Since(active[0].since) >= keepaliveDuration {
		changes, active = setKeepalive(active[0].peers, q.keepalive), active[1:]
	}
	if next := peers[:min(batch, len(peers))]; len(next) > 0 {
		changes = append(changes, setKeepalive(next, keepaliveSeconds)...)
		peers, active = peers[len(next):], append(active, keepaliveBatch{next, time.Now()})
	}
	err := configurePeers(e, changes)
	if err == nil {
		q.peers, q.active = peers, active
	}
	return err
}

func configurePeers(e Engine, changes []config.Peer) error {
	if len(changes) == 0 {
		return nil
	}
	return e.Configure(config.Device{Peers: changes})
}

// setKeepalive returns the changes that set the peers' keepalive interval.
func setKeepalive(peers []noise.PublicKey, seconds uint16) (changes []config.Peer) {
	for _, key := range peers {
		changes = append(changes, config.Peer{PublicKey: key, UpdateOnly: true, Keepalive: &seconds})
	}
	return changes
}

// correctKeepalives returns the changes that give nodes that are peers already a persistent keepalive, in seconds. An agent whose tunnel
// was taken over may just have triggered handshakes.
func correctKeepalives(nodes []mesh.Peer, have []config.PeerStatus, keepalive uint16) []config.Peer {
	present := make(map[noise.PublicKey]uint16, len(have))
	for i := range have {
		present[have[i].PublicKey] = have[i].Keepalive
	}
	var keys []noise.PublicKey
	for i := range nodes {
		if at, is := present[nodes[i].Key]; is && !nodes[i].IsExternal() && at != keepalive {
			keys = append(keys, nodes[i].Key)
		}
	}
	return setKeepalive(keys, keepalive)
}

// byLastHandshake returns the peers' keys in the order in which to trigger them: the most recent handshake first. Peers without
// one come in random order, so that agents that start together do not all begin with the same peer.
func byLastHandshake(have []config.PeerStatus) (keys []noise.PublicKey) {
	have = slices.Clone(have)
	rand.Shuffle(len(have), func(i, j int) { have[i], have[j] = have[j], have[i] })
	slices.SortStableFunc(have, func(a, b config.PeerStatus) int { return b.LastHandshake.Compare(a.LastHandshake) })
	for i := range have {
		keys = append(keys, have[i].PublicKey)
	}
	return keys
}
