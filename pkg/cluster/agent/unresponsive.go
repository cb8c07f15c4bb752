// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// unresponsive finds the nodes that do not answer handshakes. The zero value is ready. It is not safe for concurrent use.
type unresponsive struct {
	detector mesh.UnresponsiveDetector
}

// update returns the unresponsive nodes for the status. It returns nil when all peers answer or have no traffic, so that the
// status is not written in normal operation.
func (u *unresponsive) update(now time.Time, have []config.PeerStatus, want []mesh.Peer) *v1alpha1.StalePeers {
	silent := u.detector.Update(now, have)
	if len(silent) == 0 {
		return nil
	}
	names := make(map[noise.PublicKey]string, len(want))
	for i := range want {
		if want[i].Replaces.IsZero() && !want[i].IsExternal() { // a key that is not in use yet need not answer
			names[want[i].Key] = want[i].Node
		}
	}
	var nodes []string
	for _, key := range silent {
		if name, known := names[key]; known {
			nodes = append(nodes, name)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	slices.Sort(nodes)
	return &v1alpha1.StalePeers{Count: int32(len(nodes)), Nodes: nodes[:min(len(nodes), v1alpha1.MaxStaleNodes)]}
}
