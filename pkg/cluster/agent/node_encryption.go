// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// nodeEncryptionIntent has the settings for traffic between nodes.
//
// Nodes agree on it through their announcements: a node sends to another through the tunnel once both have published that they do. It does not
// begin before it knows the API server's addresses, which it exempts.
type nodeEncryptionIntent struct {
	enabled bool
	within  []netip.Prefix   // mesh.NodeTraffic.Within
	clear   []host.ClearPort // exemptions besides the API server's path
	except  labels.Selector  // of nodes that do not take part; nil: all do
}

// parseNodeEncryption parses the settings. Without any, they are as in a cluster that does not
// encrypt traffic between nodes.
func parseNodeEncryption(spec *v1alpha1.NodeEncryption) (c nodeEncryptionIntent, err error) {
	c.enabled = spec.Enabled
	if c.within, err = parseCIDRs("nodeEncryption.nodeCIDRs", spec.NodeCIDRs); err != nil {
		return c, err
	}
	if c.enabled && len(c.within) == 0 {
		return c, errors.New("spec.nodeEncryption needs nodeCIDRs: without them, a node could attract traffic to any address")
	}
	for _, text := range spec.ClearPorts {
		var p host.ClearPort
		if err := p.UnmarshalText([]byte(text)); err != nil {
			return c, fmt.Errorf("spec.nodeEncryption.clearPorts: %w", err)
		}
		c.clear = append(c.clear, p)
	}
	if spec.ClearNodes != nil {
		if c.except, err = spec.ClearNodes.Selector(); err != nil {
			return c, fmt.Errorf("spec.nodeEncryption.clearNodes: %w", err)
		}
	}
	return c, nil
}

// wantedOn reports whether a node takes part.
func (c *nodeEncryptionIntent) wantedOn(n *node) bool {
	return c.enabled && (c.except == nil || !c.except.Matches(labels.Set(n.Labels)))
}

// mark returns the mark of the tunnel's own messages.
func (c *nodeEncryptionIntent) mark() uint32 {
	if c.enabled {
		return host.TunnelMark
	}
	return 0
}

// nodeEncryption is the state of the encryption between nodes.
type nodeEncryption struct {
	api    []netip.AddrPort // the last known addresses of the API server
	active bool             // other nodes know that this node takes part
}

// resumeNodeEncryption returns the state that an earlier agent saved.
func resumeNodeEncryption(saved *host.Routing) (e nodeEncryption) {
	if saved != nil && saved.Nodes != nil {
		e = nodeEncryption{api: saved.Nodes.API, active: true}
	}
	return e
}

// update follows the cluster. It reports whether to publish that this node takes part, and a note for its condition. Once others know,
// that stays so whatever the cache has: an announcement that was lost is written again.
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
	e.active = e.active || in.announced.EncryptsNodes
	if in.apiEndpointsOver > 0 {
		note = fmt.Sprintf("%d addresses and ports of the API server are encrypted like those of other nodes: the EndpointSlice kubernetes has more than %d",
			in.apiEndpointsOver, maxAPIEndpoints)
	}
	return true, note
}

// traffic returns the parameters for the plan.
func (e *nodeEncryption) traffic(c *nodeEncryptionIntent) mesh.NodeTraffic {
	return mesh.NodeTraffic{Encrypt: e.active, Within: c.within}
}

// routing returns the node's part of the routing; nil: nothing is carried in the tunnel.
func (e *nodeEncryption) routing(c *nodeEncryptionIntent, plan *mesh.TunnelPlan, own []netip.Addr, port uint16, spread spread.Ports) *host.NodeRouting {
	if !e.active || len(plan.NodeRoutes) == 0 {
		return nil
	}
	n := &host.NodeRouting{
		Routes: plan.NodeRoutes, Own: own, API: e.api, Clear: c.clear,
		Ports: []host.PortRange{{First: port, Last: port}, {First: spread.First, Last: spread.Last}},
	}
	if len(plan.ClearNodes) > 0 {
		n.Sources = c.within
	}
	return n
}

// clearNodesNote returns a note for the condition about peers to which traffic between nodes is not encrypted, or "".
func clearNodesNote(plan *mesh.TunnelPlan) string {
	if len(plan.ClearNodes) == 0 {
		return ""
	}
	return fmt.Sprintf("traffic to %d other nodes themselves is not encrypted (spec.nodeEncryption): their agents do not take part, or "+
		"their addresses lie outside of nodeCIDRs", len(plan.ClearNodes))
}
