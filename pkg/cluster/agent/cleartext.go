// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// allows reports whether cleartext is allowed on a node that is strict since a time, or not (zero).
func allows(c v1alpha1.Cleartext, strictSince time.Time) bool {
	return c == v1alpha1.CleartextAlways || c == v1alpha1.CleartextAuto && strictSince.IsZero()
}

// cleartextNote returns a note for the node's condition about nodes that are no peers, or "". It names none: each that joins would
// make all others write their status.
func cleartextNote(c v1alpha1.Cleartext, pods []netip.Prefix, allowed bool, plan *mesh.TunnelPlan) string {
	switch {
	case c == v1alpha1.CleartextAuto && allowed && len(pods) == 0:
		return "the prefixes of the cluster's pods are unknown: traffic may stay unencrypted for ever (set podCIDRs of the RopewalkMesh, which cleartext: Auto needs to end that)"
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
