// SPDX-License-Identifier: Apache-2.0

package meshmode

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// TestFailingReconcilesAreRequestedEverLater has a peer that answers, and routes that cannot be set.
func TestFailingReconcilesAreRequestedEverLater(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	p := &Prover{Log: log, Guard: &Guard{Host: &fakePrograms{}, Log: log}}
	peer := proof.Peer{Key: noise.PublicKey{1}}
	p.Applied(Applied{Peers: []proof.Peer{peer}, Strictness: proof.Permissive})
	now := time.Now()
	p.tracker.Counted(now, []config.PeerStatus{{PublicKey: peer.Key, LastHandshake: now.Add(time.Second)}})
	requests := func() (n int) {
		for range 600 {
			now = now.Add(time.Second)
			if p.matters(now) {
				n++
				p.Failed(proof.RoutesMissing, "no routes")
				p.Outcome()
			}
		}
		return n
	}
	if n := requests(); n < 10 || n > 16 {
		t.Errorf("got %d requests in ten minutes, want one after 2, 4, 8, 16, 32 s and then each minute", n)
	}
	p.Applied(Applied{Peers: []proof.Peer{peer}, Strictness: proof.Permissive})
	now = now.Add(triggerInterval)
	if !p.matters(now) {
		t.Error("a reconcile that succeeded does not end the wait")
	}
}
