// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// cleartextLatch is the state of CleartextAuto.
type cleartextLatch struct {
	strict        bool      // all nodes have been peers, and nothing leaves unencrypted any more
	completeSince time.Time // since when all nodes are peers; zero: they are not
}

// allows reports whether cleartext is allowed at present.
func (l *cleartextLatch) allows(c v1alpha1.Cleartext) bool {
	return c == v1alpha1.CleartextAlways || c == v1alpha1.CleartextAuto && !l.strict
}

// update follows a plan. A change to strict waits for the propagation time, until the other nodes have this node's key as well:
// their packets would be dropped here. It also waits for a plan with the nodes that joined meanwhile: asOf is when the plan's nodes were all
// of the cluster (zero: they are). wait is the time until then; 0: nothing is pending.
func (l *cleartextLatch) update(c v1alpha1.Cleartext, plan *mesh.TunnelPlan, asOf time.Time, propagation time.Duration) (wait time.Duration) {
	switch {
	case c == v1alpha1.CleartextAlways: // another rollout may follow
		*l = cleartextLatch{}
	case c != v1alpha1.CleartextAuto || l.strict:
		*l = cleartextLatch{strict: true}
	case len(plan.WithoutTunnel) > 0 || len(plan.UnknownPods) > 0:
		l.completeSince = time.Time{}
	case l.completeSince.IsZero():
		l.completeSince = time.Now()
		return propagation
	default:
		if wait = propagation - time.Since(l.completeSince); wait <= 0 && !asOf.IsZero() && !asOf.After(l.completeSince) {
			return propagation // until the next check
		}
		l.strict = wait <= 0
		return max(wait, 0)
	}
	return 0
}

// cleartextNote returns a note for the node's condition about nodes that are no peers, or "". It names none: each that joins would
// make all others write their status.
func cleartextNote(c v1alpha1.Cleartext, allowed bool, plan *mesh.TunnelPlan) string {
	switch {
	case len(plan.UnknownPods) > 0:
		return "the pod prefixes of some nodes are unknown: traffic for their pods is not encrypted (set podCIDRs of the RopewalkMesh, or --pod-cidr-source)"
	case len(plan.WithoutTunnel) == 0:
		return ""
	case allowed && c == v1alpha1.CleartextAuto:
		return "some nodes have no tunnel yet: traffic for their pods is not encrypted until all nodes have one (cleartext: Auto)"
	case allowed:
		return "some nodes have no tunnel: traffic for their pods is not encrypted (cleartext: Always)"
	}
	return "some nodes have no tunnel: traffic for their pods is dropped (cleartext: " + string(c) + ")"
}
