// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// modeReconciler implements one mode on this node.
type modeReconciler interface {
	// reconcile makes the host match the cluster. After an error, the result has what was done until then.
	reconcile(ctx context.Context, in reconcileInput) (result, error)
	// tearDown removes everything that the mode has added to the host, when the node is excluded.
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
	seen := seenNow(m.prover.Seen)
	a.stats.seen.Store(&seen)
}

// reconcileMode runs the reconciler of the mode, or tears it down on a node that is excluded.
func (a *Agent) reconcileMode(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, t trigger) (result, error) {
	note, err := a.readIntent(n)
	if err != nil {
		return result{}, err
	}
	a.advance(eventNodeKnown)
	self := toMesh(withSettings(n, rn), nil)
	self.Addrs = mesh.UsableAddrs(self.Addrs) // the API server rejects a status with others
	res := result{}
	excluded := a.intent.excludes(n)
	a.stats.takesPart.Store(!excluded)
	if excluded {
		// Without endpoints, the status makes other agents read the Node, and see the label that excludes it.
		res, err = result{notes: []string{"the node is excluded (spec.exclude of the RopewalkMesh)"}}, a.active.tearDown(ctx)
	} else {
		res, err = a.reconcileNode(ctx, n, rn, self, t)
	}
	res.announcement.Mode = v1alpha1.Mode(a.cfg.Mode)
	if a.persisted.Mesh != nil && err == nil {
		res.status.MeshUID, res.status.MeshGeneration = string(a.persisted.Mesh.UID), a.persisted.Mesh.Generation
	}
	res.clusterNote = joinNotes(res.clusterNote, note)
	return res, err
}

// reconcileNode runs the reconciler of the mode.
func (a *Agent) reconcileNode(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, self mesh.Node, t trigger) (result, error) {
	nodes := a.cluster.all(a.intent.excludes)
	if i := slices.IndexFunc(nodes, func(m mesh.Node) bool { return m.Name == self.Name }); i >= 0 {
		self.PodCIDRs = nodes[i].PodCIDRs // not always the Node's
	}
	in := reconcileInput{
		nodes: nodes, nodesAsOf: a.cluster.reader.asOf(), self: self, spec: rn.Spec, settings: a.settingsOf(n, rn), intent: a.intent,
		lastStatus: rn.Status, hostMayHaveChanged: t != clusterChanged,
	}
	if _, _, ra := a.cluster.self(); ra != nil && announces(ra, n) {
		in.announced = ra.Spec
	}
	if m := a.runningMesh(); m != nil {
		a.cluster.external.follow(ctx, len(m.external) > 0)
		in.external, in.externalKnown = a.cluster.external.of(n)
		a.setNodeEncryption(ctx, n, &in)
		release, _ := kernel.Uname()
		in.oldKernel = host.OldKernel(release)
	}
	res, err := a.active.reconcile(ctx, in)
	res.nodes, res.self = nodes, self
	if res.requeueAfter > 0 {
		a.queue.AddAfter(clusterChanged, res.requeueAfter)
	}
	return res, err
}

// settingsOf returns the settings of the node, from its pool or from the flags of spread mode.
// The port of its RopewalkNode precedes.
func (a *Agent) settingsOf(n *node, rn *v1alpha1.RopewalkNode) mesh.Settings {
	s := a.intent.settings(n)
	s.Port = cmp.Or(uint16(rn.Spec.Port), s.Port, a.cfg.Port)
	return s
}

// setNodeEncryption sets whether this node is to encrypt traffic between nodes, and the API server's addresses.
func (a *Agent) setNodeEncryption(ctx context.Context, n *node, in *reconcileInput) {
	c := &a.intent.nodes
	if !c.enabled {
		return
	}
	a.cluster.endpoints.follow(ctx)
	in.encryptNodes = c.wantedOn(n)
	in.apiEndpoints, in.apiEndpointsOver = a.cluster.endpoints.with(a.api.reached(), c.within)
}

// runningMesh returns the reconciler that runs the tunnel; nil: the agent is one of spread mode.
func (a *Agent) runningMesh() *meshReconciler {
	m, _ := a.active.(*meshReconciler)
	return m
}
