// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// reconcileInput is the cluster's state for one reconcile.
type reconcileInput struct {
	nodes              []mesh.Node
	nodesAsOf          time.Time // when nodes were last known to be all of the cluster; zero: they are
	self               mesh.Node
	spec               v1alpha1.NodeSpec
	settings           mesh.Settings
	intent             *intent                   // in mesh mode
	lastStatus         v1alpha1.NodeStatus       // this node's, as the cluster has it
	announced          v1alpha1.AnnouncementSpec // likewise
	external           []mesh.ExternalPeer       // in mesh mode
	externalKnown      bool                      // external is complete
	encryptNodes       bool                      // this node is to encrypt traffic between nodes
	oldKernel          string                    // release of a kernel that cannot; see host.OldKernel
	apiEndpoints       []netip.AddrPort          // of the API server; none: unknown
	apiEndpointsOver   int                       // how many are too many, and not in apiEndpoints
	hostMayHaveChanged bool                      // what was read of the host before may be outdated
}

// result is the outcome of one reconcile.
type result struct {
	status       v1alpha1.NodeStatus       // the fields that the reconciler of the mode sets
	announcement v1alpha1.AnnouncementSpec // likewise
	changes      int                       // made to the host
	repaired     int                       // number of changes that undo changes of other programs
	notes        []string                  // warnings about this node, for the Ready condition and an Event
	// clusterNote is for the Ready condition alone, since all nodes have it at the same time.
	clusterNote string
	// problems concern other nodes. They go to the log and a metric. In a status, one node's problem would make all others
	// write theirs.
	problems      []mesh.Problem
	external      *externalOutcome // nil: the external peers are unknown, or the mode has none
	externalPeers int              // number of external peers that this node has
	withoutTunnel int              // number of nodes that have no tunnel to this one, in mesh mode
	nodeRoutes    int              // number of addresses of other nodes that traffic reaches through the tunnel
	clearNodes    int              // number of peers to whose addresses traffic is not encrypted although this node would encrypt it
	filtering     bool             // unencrypted packets from other nodes' pods are dropped, in mesh mode
	cleartext     bool             // traffic for pods of nodes without a tunnel leaves unencrypted
	routing       *host.Routing    // into the tunnel; nil: none
	saved         *savedTunnel     // for the persisted state; nil: there is no tunnel
	requeueAfter  time.Duration    // delay of the next reconcile; 0: not before the next event
	nodes         []mesh.Node      // of the cluster; none if the node opted out
	self          mesh.Node
	// refusedPrefixes is the number of prefixes and addresses of other nodes that are not used.
	refusedPrefixes int
	proofs          *meshmode.Outcome    // in mode mesh
	spread          metrics.SpreadSource // nil: no eBPF programs are attached
}

// failedWithoutEndpoints reports whether the reconcile failed before it found this node's endpoints: r has next to nothing to publish.
func (r *result) failedWithoutEndpoints(err error) bool {
	return err != nil && len(r.announcement.Endpoints) == 0
}

// soonest returns the shorter of two delays. 0 means none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
