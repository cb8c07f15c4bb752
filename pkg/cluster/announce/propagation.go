// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// Propagation tracks how long other nodes have been able to know where this node sends from. The zero value is ready.
type Propagation struct {
	pending bool
	since   time.Time
}

// Done reports whether that is at least a time, or else how long to wait. It compares the
// announcement in the API with the next one. After a change of address, ports or mode, others do
// not gather from this node yet. An announcement from before the agent's start counts as known.
func (p *Propagation) Done(published, next *v1alpha1.AnnouncementSpec, after time.Duration) (bool, time.Duration) {
	same := len(next.Endpoints) > 0 && // nobody gathers from a node without endpoints
		published.Mode == v1alpha1.ModeSpread && published.SpreadPorts != nil && *published.SpreadPorts == *next.SpreadPorts &&
		sameEndpoints(published.Endpoints, next.Endpoints)
	switch {
	case !same:
		p.pending = true
		return false, 0
	case p.pending:
		p.pending, p.since = false, time.Now()
	}
	wait := after - time.Since(p.since)
	return wait <= 0, max(wait, 0)
}

// sameEndpoints compares endpoints in any order: the order of a Node's addresses may change at any time.
func sameEndpoints(a, b []v1alpha1.Endpoint) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
