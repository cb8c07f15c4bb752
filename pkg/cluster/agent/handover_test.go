// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

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
