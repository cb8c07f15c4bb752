// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// modeReconciler implements one mode on this node.
type modeReconciler interface {
	// reconcile makes the host match the cluster. After an error, the result has what was done until then.
	reconcile(ctx context.Context, in reconcileInput) (result, error)
	// tearDown removes everything that the mode has added to the host, when the node opts out.
	tearDown(ctx context.Context) error
	// stop ends the mode's goroutines when the process ends. Interfaces, routes and attached programs stay.
	stop()
}

// startReconciler makes the reconciler of the agent's mode, which is the same for the life of the process.
func (a *Agent) startReconciler() {
	if a.cfg.Mode == mesh.ModeSpread {
		a.active = newSpreadReconciler(a.cfg, a.triggerHostChanged)
		return
	}
	m := newMeshReconciler(a.cfg, a.persisted.Tunnel, a.api.all, a.triggerHostChanged)
	m.encryption = resumeNodeEncryption(a.persisted.Routing)
	a.active = m
}

// reconcileSettings runs the reconciler of the mode, or tears it down on a node that opted out.
func (a *Agent) reconcileSettings(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, t trigger, s mesh.Settings) (result, error) {
	a.advance(eventNodeKnown)
	self := toMesh(n, rn)
	self.OptOut = rn.Spec.OptOut // the spec may come from the persisted state
	self.Endpoint, _ = netip.ParseAddr(rn.Spec.Endpoint)
	self.Addrs = mesh.UsableAddrs(self.Addrs) // the API server rejects a status with others
	if self.OptOut {
		return result{notes: []string{"the node opted out"}}, a.active.tearDown(ctx)
	}
	nodes := a.cluster.all()
	if i := slices.IndexFunc(nodes, func(m mesh.Node) bool { return m.Name == self.Name }); i >= 0 {
		self.PodCIDRs = nodes[i].PodCIDRs // not always those of the Node
	}
	in := reconcileInput{
		nodes: nodes, nodesAsOf: a.cluster.reader.asOf(), self: self, spec: rn.Spec, settings: s, lastStatus: rn.Status, hostMayHaveChanged: t != clusterChanged,
	}
	if m := a.runningMesh(); m != nil {
		a.cluster.external.follow(ctx, len(m.external) > 0)
		in.external, in.externalKnown = a.cluster.external.of(n)
		a.setNodeEncryption(ctx, n, &in)
		release, _ := kernel.Uname()
		in.oldKernel = oldKernel(release)
	}
	res, err := a.active.reconcile(ctx, in)
	res.status.Mode, res.nodes, res.self = v1alpha1.Mode(a.cfg.Mode), nodes, self
	if res.requeueAfter > 0 {
		a.queue.AddAfter(clusterChanged, res.requeueAfter)
	}
	return res, err
}

// setNodeEncryption sets whether this node is to encrypt traffic between nodes, and the API server's addresses.
func (a *Agent) setNodeEncryption(ctx context.Context, n *node, in *reconcileInput) {
	c := &a.cfg.NodeEncryption
	if !c.Enabled {
		return
	}
	a.cluster.endpoints.follow(ctx)
	in.encryptNodes = c.wantedOn(n)
	in.apiEndpoints, in.apiEndpointsOver = a.cluster.endpoints.with(a.api.reached(), c.CIDRs)
}

// runningMesh returns the reconciler that runs the tunnel; nil: the agent is one of spread mode.
func (a *Agent) runningMesh() *meshReconciler {
	m, _ := a.active.(*meshReconciler)
	return m
}
