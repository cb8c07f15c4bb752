// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// handshakeTrigger makes a device shake hands with its peers, by persistent keepalives that last for a moment: peers may send with the
// keys of an engine before, or to a key before, until they hear of this one. The first few are nudged at once, the others at a
// pace, since many agents may begin at the same time, as in a rollout. Who is sent to meanwhile is shaken hands with at once by
// the device itself.
type handshakeTrigger struct {
	cancel context.CancelFunc
	done   chan struct{}
}

const (
	// keepaliveSeconds is the interval of those keepalives, in seconds. The first one is sent at once.
	keepaliveSeconds = 25
	// handshakeBurst is how many peers are nudged at once at first, and handshakeBatch after each handshakeInterval, which is up to half longer: 200
	// peers a second. Where 500 of 5,000 agents begin at once, each node has 20 handshakes a second of that.
	handshakeBurst    = 50
	handshakeBatch    = 10
	handshakeInterval = 40 * time.Millisecond
	// keepaliveDuration is how long a peer's keepalives go on: a handshake that has begun is tried again without them.
	keepaliveDuration = time.Second
)

// keepaliveBatch are peers that have keepalives.
type keepaliveBatch struct {
	peers []noise.PublicKey
	since time.Time
}

// triggerHandshakes begins with the peers in that order.
func triggerHandshakes(e Engine, peers []noise.PublicKey, log *slog.Logger) *handshakeTrigger {
	ctx, cancel := context.WithCancel(context.Background())
	n := &handshakeTrigger{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		t := handshakeQueue{peers: peers}
		for batch := handshakeBurst; len(t.peers) > 0 || len(t.active) > 0; batch = handshakeBatch {
			pause := handshakeInterval
			if err := t.step(e, batch); err != nil {
				if !t.lastFailed {
					log.Warn("peers are not made to shake hands; trying again", "peers", len(t.peers), "error", err)
				}
				t.lastFailed, pause = true, keepaliveDuration
			}
			select {
			case <-ctx.Done():
				return
			case <-e.Done():
				return
			case <-time.After(wait.Jitter(pause, 0.5)):
			}
		}
	}()
	return n
}

// handshakeQueue are how far nudging is.
type handshakeQueue struct {
	peers      []noise.PublicKey // whose turn it has yet to be
	active     []keepaliveBatch  // the eldest first
	lastFailed bool              // a change has
}

// step ends the keepalives that have lasted, and begins with a batch of others. After an error it is as it was, so that none
// goes on for ever.
func (t *handshakeQueue) step(e Engine, batch int) error {
	var changes []config.Peer
	peers, on := t.peers, t.active
	if len(on) > 0 && time.Since(on[0].since) >= keepaliveDuration {
		changes, on = setKeepalive(on[0].peers, 0), on[1:]
	}
	if next := peers[:min(batch, len(peers))]; len(next) > 0 {
		changes = append(changes, setKeepalive(next, keepaliveSeconds)...)
		peers, on = peers[len(next):], append(on, keepaliveBatch{next, time.Now()})
	}
	err := configurePeers(e, changes)
	if err == nil {
		t.peers, t.active = peers, on
	}
	return err
}

func configurePeers(e Engine, changes []config.Peer) error {
	if len(changes) == 0 {
		return nil
	}
	return e.Configure(config.Device{Peers: changes})
}

// stop ends it. A nil one has ended.
func (n *handshakeTrigger) stop() {
	if n != nil {
		n.cancel()
		<-n.done
	}
}

// setKeepalive are changes of peers' interval.
func setKeepalive(peers []noise.PublicKey, seconds uint16) (changes []config.Peer) {
	for _, key := range peers {
		changes = append(changes, config.Peer{PublicKey: key, UpdateOnly: true, Keepalive: &seconds})
	}
	return changes
}

// byLastHandshake are the peers in the order in which to nudge them: those that were talked to last come first. Agents that begin at
// once do not all begin with the same one.
func byLastHandshake(have []config.PeerStatus) (keys []noise.PublicKey) {
	have = slices.Clone(have)
	rand.Shuffle(len(have), func(i, j int) { have[i], have[j] = have[j], have[i] })
	slices.SortStableFunc(have, func(a, b config.PeerStatus) int { return b.LastHandshake.Compare(a.LastHandshake) })
	for i := range have {
		keys = append(keys, have[i].PublicKey)
	}
	return keys
}
