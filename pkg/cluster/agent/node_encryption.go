// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// NodeEncryption has the settings for traffic between nodes, in mesh mode.
//
// Nodes agree on it through their status: a node sends to another through the tunnel once both have published that they do. It does not
// begin before it knows the API server's addresses, which it exempts.
type NodeEncryption struct {
	Enabled bool
	// CIDRs are those of mesh.NodeTraffic.Within.
	CIDRs []netip.Prefix
	// Clear are exemptions besides the API server's path.
	Clear []ClearPort
	// Except has labels: a node that has all of them does not take part. Empty: there is no such node.
	Except map[string]v1alpha1.LabelValue
}

// wantedOn reports whether a node takes part.
func (c *NodeEncryption) wantedOn(n *node) bool {
	return c.Enabled && (len(c.Except) == 0 || !hasLabels(n.Labels, c.Except))
}

// mark returns the mark of the tunnel's own messages.
func (c *NodeEncryption) mark() uint32 {
	if c.Enabled {
		return tunnelMark
	}
	return 0
}

// nodeEncryption is the state of the encryption between nodes.
type nodeEncryption struct {
	api    []netip.AddrPort // the last known addresses of the API server
	active bool             // other nodes know that this node takes part
}

// resumeNodeEncryption returns the state that an earlier agent saved.
func resumeNodeEncryption(saved *Routing) (e nodeEncryption) {
	if saved != nil && saved.Nodes != nil {
		e = nodeEncryption{api: saved.Nodes.API, active: true}
	}
	return e
}

// update follows the cluster. It reports whether to publish that this node takes part, and a note for its condition. Once others know,
// that stays so whatever the cache has: a status that was lost is written again.
func (e *nodeEncryption) update(in *reconcileInput) (publish bool, note string) {
	if len(in.apiEndpoints) > 0 {
		e.api = in.apiEndpoints
	}
	if !in.encryptNodes {
		e.active = false
		return false, ""
	}
	if in.oldKernel != "" {
		e.active = false
		return false, mesh.UnencryptedNote + "it needs Linux 6.1, and this is " + in.oldKernel
	}
	if len(e.api) == 0 {
		e.active = false
		return false, mesh.UnencryptedNote + "the addresses of the API server, which have to be exempt, are unknown " +
			"(EndpointSlice kubernetes in the namespace default)"
	}
	e.active = e.active || in.lastStatus.EncryptsNodes
	if in.apiEndpointsOver > 0 {
		note = fmt.Sprintf("%d addresses and ports of the API server are encrypted like those of other nodes: the EndpointSlice kubernetes has more than %d",
			in.apiEndpointsOver, maxAPIEndpoints)
	}
	return true, note
}

// oldKernel returns the release of a kernel on which packets for the API server's Service would enter the tunnel, else "". Linux 5.10 ignores
// ports in rules when it routes a packet again that was translated in OUTPUT (ip_route_me_harder); 6.1 does not. This cannot be
// probed on the host, so the release decides. An unreadable one counts as new.
func oldKernel(release string) string {
	if r, ok := kernel.Parse(release); ok && r.Before(6, 1) {
		return release
	}
	return ""
}

// traffic returns the parameters for the plan.
func (e *nodeEncryption) traffic(c *NodeEncryption) mesh.NodeTraffic {
	return mesh.NodeTraffic{Encrypt: e.active, Within: c.CIDRs}
}

// routing returns the node's part of the routing; nil: nothing is carried in the tunnel.
func (e *nodeEncryption) routing(cfg *Config, plan *mesh.TunnelPlan, own []netip.Addr, port uint16) *NodeRouting {
	if !e.active || len(plan.NodeRoutes) == 0 {
		return nil
	}
	n := &NodeRouting{
		Routes: plan.NodeRoutes, Own: own, API: e.api, Clear: cfg.NodeEncryption.Clear,
		Ports: []PortRange{{port, port}, {cfg.Ports.First, cfg.Ports.Last}},
	}
	if len(plan.ClearNodes) > 0 {
		n.Sources = cfg.NodeEncryption.CIDRs
	}
	return n
}

// clearNodesNote returns a note for the condition about peers to which traffic between nodes is not encrypted, or "".
func clearNodesNote(plan *mesh.TunnelPlan) string {
	if len(plan.ClearNodes) == 0 {
		return ""
	}
	return fmt.Sprintf("traffic to %d other nodes themselves is not encrypted (mesh.encryptNodes): their agents do not take part, or "+
		"their addresses lie outside of mesh.nodeCIDRs", len(plan.ClearNodes))
}
