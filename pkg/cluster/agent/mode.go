// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
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
	// tearDown removes everything that the mode has added to the host, when the node opts out or changes its mode.
	tearDown(ctx context.Context) error
	// stop ends the mode's goroutines when the process ends. Interfaces, routes and attached programs stay.
	stop()
}

// modeSwitch holds the reconcilers of an agent.
type modeSwitch struct {
	active            modeReconciler  // nil: no mode has been entered
	mode              mesh.Mode       // of active
	resumedReconciler *meshReconciler // runs the persisted tunnel before a mode is entered; nil: there is none
	lastSpreadPort    uint16          // the tunnel's port in the last status of spread mode; 0: unknown
}

// reconcileSettings runs the reconciler of a mode, or tears it down on a node that opted out.
func (a *Agent) reconcileSettings(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, t trigger, s mesh.Settings) (result, error) {
	a.lastSpreadPort = lastSpreadPort(&rn.Status)
	if err := a.switchMode(ctx, s.Mode); err != nil {
		return result{}, err
	}
	a.advance(eventModeEntered)
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
	if s.Mode == mesh.ModeMesh {
		m := a.runningMesh()
		a.cluster.external.follow(ctx, m != nil && len(m.external) > 0)
		in.external, in.externalKnown = a.cluster.external.of(n)
		a.setNodeEncryption(ctx, n, &in)
		release, _ := kernel.Uname()
		in.oldKernel = oldKernel(release)
	}
	res, err := a.active.reconcile(ctx, in)
	res.status.Mode, res.nodes, res.self = v1alpha1.Mode(s.Mode), nodes, self
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

// switchMode makes the reconciler of a mode the active one. It first tears down the other mode, including remains of an earlier
// agent.
func (a *Agent) switchMode(ctx context.Context, mode mesh.Mode) error {
	if a.active != nil && mode == a.mode {
		return nil
	}
	spreader, mesher := newSpreadReconciler(a.cfg, a.lastSpreadPort, a.triggerHostChanged), a.resumedReconciler
	if mesher == nil {
		mesher = newMeshReconciler(a.cfg, a.persisted.Tunnel, a.api.all, a.triggerHostChanged)
		mesher.encryption = resumeNodeEncryption(a.persisted.Routing)
	}
	var next, previous modeReconciler = spreader, mesher
	switch mode {
	case mesh.ModeSpread:
	case mesh.ModeMesh:
		next, previous = mesher, spreader
	default:
		return fmt.Errorf("unknown mode %q of this node: want spread or mesh", mode)
	}
	if a.active != nil {
		previous = a.active
	}
	switch err := previous.tearDown(ctx); {
	case err == nil:
	case a.active == nil && mode == mesh.ModeMesh: // programs that no traffic passes do no harm
		a.cfg.Log.Warn("detaching the spread programs of an earlier agent failed, leaving them until this agent restarts: traffic of the mesh does not pass them", "error", err)
	default:
		return fmt.Errorf("tearing down the mode before %s: %w", mode, err)
	}
	a.active, a.mode, a.resumedReconciler = next, mode, nil
	return nil
}

// stopReconcilers stops whatever runs, as the process ends.
func (a *Agent) stopReconcilers() {
	if a.resumedReconciler != nil {
		a.resumedReconciler.stop()
	}
	if a.active != nil {
		a.active.stop()
	}
}

// runningMesh returns the reconciler that runs the tunnel, or nil.
func (a *Agent) runningMesh() *meshReconciler {
	m, _ := a.active.(*meshReconciler)
	return cmp.Or(m, a.resumedReconciler)
}
