// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestUnresponsivePeersAreNamedAndBounded(t *testing.T) {
	begin := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	var have []config.PeerStatus
	var want []mesh.Peer
	for i := range 12 {
		key := noise.PublicKey{byte(i + 1)}
		have = append(have, config.PeerStatus{PublicKey: key})
		want = append(want, mesh.Peer{Node: fmt.Sprintf("n%02d", 12-i), Key: key})
	}
	want[0].Replaces = noise.PublicKey{99} // the next key of n12
	var s unresponsive
	var got *v1alpha1.StalePeers
	for i := range 4 {
		for j := range have {
			have[j].TxBytes += 148
		}
		if got = s.update(begin.Add(time.Duration(i)*5*time.Minute), have, want); i < 2 && got != nil {
			t.Errorf("update %d: %+v", i, got)
		}
	}
	if got == nil || got.Count != 11 || len(got.Nodes) != v1alpha1.MaxStaleNodes || got.Nodes[0] != "n01" {
		t.Errorf("got %+v, want non-nil", got)
	}
	for j := range have {
		have[j].LastHandshake = begin.Add(20 * time.Minute)
	}
	if got = s.update(begin.Add(21*time.Minute), have, want); got != nil {
		t.Errorf("after the peers answered: got %+v, want nil", got)
	}
}
