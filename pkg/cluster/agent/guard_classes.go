// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// guardClasses returns the guard's prefixes for a plan: all that leads into the tunnel is remote, but
// for the cluster's prefixes of pods themselves, of which no node has the rest. If two lists have
// the same prefix, the later one here applies: own pods are exempt in a plan, too.
//
//nolint:unused // until the agent opens the guard
func guardClasses(plan *mesh.TunnelPlan, cluster []netip.Prefix) map[netip.Prefix]programs.GuardClass {
	classes := make(map[netip.Prefix]programs.GuardClass, len(plan.Routes)+len(plan.Beside)+len(plan.Pods)+len(cluster))
	for _, list := range []struct {
		prefixes []netip.Prefix
		class    programs.GuardClass
	}{
		{plan.Routes, programs.GuardClassRemote},
		{cluster, programs.GuardClassUnknown},
		{plan.Beside, programs.GuardClassExempt},
		{plan.Pods, programs.GuardClassLocal},
	} {
		for _, p := range list.prefixes {
			classes[p.Masked()] = list.class
		}
	}
	return classes
}
