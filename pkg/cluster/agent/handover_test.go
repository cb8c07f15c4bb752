// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// TestLogNamesNodesThatChangeKeys moves the allowed IPs of two nodes, each from its present key to its next.
func TestLogNamesNodesThatChangeKeys(t *testing.T) {
	var out bytes.Buffer
	m := &meshReconciler{cfg: Config{Log: slog.New(slog.NewTextHandler(&out, nil))}}
	var peers []mesh.Peer
	var moves []config.Peer
	for i, node := range []string{"b", "b", "a", "a"} {
		key := noise.PublicKey{byte(i + 1)}
		peers = append(peers, mesh.Peer{Node: node, Key: key})
		moves = append(moves, config.Peer{PublicKey: key, UpdateOnly: true})
	}
	m.logMoves(movedNodes(moves, peers), nil)
	if got := out.String(); !strings.Contains(got, `nodes=2 names="[a b]"`) {
		t.Errorf("got %q, want the names of both nodes", got)
	}
}

// slowEngine takes a time for each status, as an engine does on a host whose CPUs are busy.
type slowEngine struct {
	fakeEngine
	takes time.Duration
	polls atomic.Int64
}

func (e *slowEngine) StatusOf(keys ...noise.PublicKey) (config.Status, error) {
	e.polls.Add(1)
	time.Sleep(e.takes)
	return e.fakeEngine.StatusOf(keys...)
}

// TestPollsDependOnChangingKeys: packets of a node are lost from its first handshake with another key to the next poll. Busy CPUs must not make polls
// rarer, and the keys of many nodes must not keep a CPU busy.
func TestPollsDependOnChangingKeys(t *testing.T) {
	for _, c := range []struct {
		nodes        int
		fewest, most int64
	}{{1, 60, 70}, {5000, 1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			m, _, _ := newTestMeshReconciler(t)
			e := &slowEngine{takes: 5 * time.Millisecond}
			m.engine = e
			var peers []mesh.Peer
			for i := range c.nodes {
				p := mesh.Peer{Node: string(rune(i)), Key: noise.PublicKey{1}, Replaces: noise.PublicKey{2}}
				binary.BigEndian.PutUint32(p.Key[1:], uint32(i))
				binary.BigEndian.PutUint32(p.Replaces[1:], uint32(i))
				peers = append(peers, p)
			}
			m.startHandover(peers)
			time.Sleep(1010 * time.Millisecond)
			m.handover.stop()
			if n := e.polls.Load(); n < c.fewest || n > c.most {
				t.Errorf("%d nodes: %d polls in a second, want %d to %d", c.nodes, n, c.fewest, c.most)
			}
		})
	}
}
