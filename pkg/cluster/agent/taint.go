// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
)

// startupTaint keeps pods away from a node until its agent has removed it. The program that creates nodes sets it.
const startupTaint = "node.ropewalk.io/agent-not-ready"

// removeStartupTaint removes the taint once the node's pods can reach other nodes' pods, or if
// the node takes no part.
func (a *Agent) removeStartupTaint(ctx context.Context, n *node, o *meshmode.Outcome) error {
	if !a.cfg.StartupTaint || !n.hasStartupTaint() || !a.intent.excludes(n) && !carriesPods(o) {
		return nil
	}
	removed, err := a.client.removeTaint(ctx, n.Name, startupTaint)
	if err != nil || !removed { // the Node that the agent knows may be older
		return err
	}
	a.cfg.Log.Info("removed the start-up taint: pods may start on this node", "node", n.Name, "taint", startupTaint)
	return nil
}

// carriesPods reports whether the tunnel is up and peers answer in it, or there are none.
func carriesPods(o *meshmode.Outcome) bool {
	return o != nil && slices.ContainsFunc(o.Conditions, func(c proof.Condition) bool { return c.Type == proof.TunnelUp && c.Status == proof.True }) &&
		slices.ContainsFunc(o.Conditions, func(c proof.Condition) bool {
			return c.Type == proof.PeersReachable && (c.Status == proof.True || c.Reason == proof.NoPeers)
		})
}
