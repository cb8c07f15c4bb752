// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// Cleartext says when traffic for pods of nodes that are no peers may leave unencrypted, in mesh mode. It implements
// encoding.TextMarshaler and TextUnmarshaler.
type Cleartext string

// The settings.
const (
	CleartextNever  Cleartext = "never"  // it is dropped; the zero value means the same
	CleartextAuto   Cleartext = "auto"   // until all nodes of the cluster have been peers once
	CleartextAlways Cleartext = "always" // for nodes that are moving into mesh mode or out of it
)

// MarshalText returns the setting's name.
func (c Cleartext) MarshalText() ([]byte, error) { return []byte(c), nil }

// UnmarshalText accepts the names of the settings.
func (c *Cleartext) UnmarshalText(text []byte) error {
	switch v := Cleartext(text); v {
	case CleartextNever, CleartextAuto, CleartextAlways:
		*c = v
		return nil
	}
	return fmt.Errorf("%q: want never, auto or always", text)
}

// cleartextLatch is the state of CleartextAuto.
type cleartextLatch struct {
	strict        bool      // all nodes have been peers, and nothing leaves unencrypted any more
	completeSince time.Time // since when all nodes are peers; zero: they are not
}

// allows reports whether cleartext is allowed at present.
func (l *cleartextLatch) allows(c Cleartext) bool {
	return c == CleartextAlways || c == CleartextAuto && !l.strict
}

// update follows a plan. A change to strict waits for the propagation time, until the other nodes have this node's key as well:
// their packets would be dropped here. It also waits for a plan with the nodes that joined meanwhile: asOf is when the plan's nodes were all
// of the cluster (zero: they are). wait is the time until then; 0: nothing is pending.
func (l *cleartextLatch) update(c Cleartext, plan *mesh.TunnelPlan, asOf time.Time, propagation time.Duration) (wait time.Duration) {
	switch {
	case c == CleartextAlways: // another rollout may follow
		*l = cleartextLatch{}
	case c != CleartextAuto || l.strict:
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
func cleartextNote(c Cleartext, allowed bool, plan *mesh.TunnelPlan) string {
	switch {
	case len(plan.UnknownPods) > 0:
		return "the pod prefixes of some nodes are unknown: traffic for their pods is not encrypted (set mesh.podCIDRs, or mesh.podCIDRSource)"
	case len(plan.WithoutTunnel) == 0:
		return ""
	case allowed && c == CleartextAuto:
		return "some nodes have no tunnel yet: traffic for their pods is not encrypted until all nodes have one (mesh.cleartext=auto)"
	case allowed:
		return "some nodes have no tunnel: traffic for their pods is not encrypted (mesh.cleartext=always)"
	}
	return "some nodes have no tunnel: traffic for their pods is dropped (mesh.cleartext=" + string(c) + ")"
}
