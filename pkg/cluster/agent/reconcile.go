// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

var (
	// errNodeNotFound means that the API does not have the node, or not yet.
	errNodeNotFound = errors.New("the cluster has no node of this name")
	// errStaleRopewalkNode means that garbage collection of an earlier node's RopewalkNode is pending.
	errStaleRopewalkNode = errors.New("waiting for Kubernetes to garbage-collect the RopewalkNode of an earlier node of this name")
)

// reconcile makes the host match the cluster and publishes the node's status, after an error as well.
func (a *Agent) reconcile(ctx context.Context, t trigger) error {
	requested := a.requested.Load()
	clusterUnchanged := requested == a.handled
	n, rn, err := a.ownObjects(ctx)
	if err == nil {
		err = a.checkDefinitions(ctx, n)
	}
	if err != nil {
		a.advance(eventNodeMissing)
		if errors.Is(err, errNodeNotFound) || errors.Is(err, errStaleRopewalkNode) || errors.Is(err, errOutdatedCRD) {
			a.stats.Ready.Store(false)
		}
		if errors.Is(err, errOutdatedCRD) {
			err = errors.Join(err, a.publishOutdated(ctx, rn, err))
		}
		return errors.Join(err, a.applyLastDesired(n))
	}
	res, err := a.reconcileMode(ctx, n, rn, t)
	a.logProblems(res.problems)
	if err == nil {
		a.handled = requested
		a.savePersisted(persistedState{Node: n.UID, Name: n.Name, Mode: a.cfg.Mode, Spec: rn.Spec, Mesh: a.persisted.Mesh, Settings: a.settingsOf(n, rn), Routing: res.routing, Tunnel: res.saved})
	} else if res.saved != nil && !res.saved.StrictSince.IsZero() {
		a.saveStrict(n, res.saved.StrictSince)
	}
	a.stats.Reconciles.Add(1)
	a.stats.update(&res, err)
	drift := res.repaired
	if err == nil && t != clusterChanged && clusterUnchanged {
		drift = res.changes
	}
	a.reportDrift(drift)
	published := a.publish(ctx, n, rn, res, err)
	if err == nil { // the condition describes what this node has
		a.publishExternal(ctx, res.external)
		a.releaseMemory(res.changes)
		published = errors.Join(published, a.removeStartupTaint(ctx, n, res.proofs))
	}
	return errors.Join(err, published)
}

// ownObjects returns this node's objects. It creates the RopewalkNode where there is none.
func (a *Agent) ownObjects(ctx context.Context) (n *node, rn *v1alpha1.RopewalkNode, err error) {
	n, rn, _ = a.cluster.self()
	switch {
	case n == nil:
		err = fmt.Errorf("%w: %s", errNodeNotFound, a.cfg.Node)
	case rn == nil:
		rn, err = a.createRopewalkNode(ctx, n)
	case ownedBy(rn, n):
		a.created.at = time.Time{}
	case !hasNodeAsOwner(rn) && rn.DeletionTimestamp.IsZero():
		err = a.adoptRopewalkNode(ctx, rn, n)
		rn = rn.DeepCopy()
		rn.Status = v1alpha1.NodeStatus{} // an earlier node may have written it
	default:
		err = fmt.Errorf("%w: %s", errStaleRopewalkNode, a.cfg.Node)
	}
	return n, rn, err
}

// adoptRopewalkNode makes the node the owner of a RopewalkNode that an administrator created or
// replaced. It does nothing if it did so a moment ago, and the informer does not have that yet.
func (a *Agent) adoptRopewalkNode(ctx context.Context, rn *v1alpha1.RopewalkNode, n *node) error {
	if a.created.node == n.UID && time.Since(a.created.at) < writeEchoTimeout {
		return nil
	}
	err := a.client.adopt(ctx, rn, n)
	if err == nil {
		a.created = creation{n.UID, time.Now(), rn}
		a.cfg.Log.Info("made the Node the owner of a RopewalkNode that existed before: deleting the Node deletes the RopewalkNode, too", "node", n.Name)
	}
	return err
}

// createRopewalkNode creates the node's RopewalkNode and returns it, unless it did so a moment ago and the informer does not have it yet.
func (a *Agent) createRopewalkNode(ctx context.Context, n *node) (*v1alpha1.RopewalkNode, error) {
	if a.created.node == n.UID && time.Since(a.created.at) < writeEchoTimeout {
		return a.created.object, nil
	}
	rn, err := a.client.create(ctx, n)
	if err == nil {
		a.created = creation{n.UID, time.Now(), rn}
	}
	return rn, err
}

// logProblems logs the problems that the last reconcile did not have.
func (a *Agent) logProblems(problems []mesh.Problem) {
	for _, p := range problems {
		if !slices.Contains(a.loggedProblems, p) {
			a.cfg.Log.Warn("peer node has a problem, ignoring its unusable data: traffic for that node may be unencrypted, lost or not spread", "node", p.Node, "reason", p.Reason)
		}
	}
	a.loggedProblems = problems
}

// releaseAfter is the minimum number of changes in a reconcile after which unused memory is returned to the system.
const releaseAfter = 500

// releaseMemory returns unused memory to the system after the first reconcile, which follows the initial lists of all objects, and after
// large changes. Go's runtime alone collects the garbage at the next allocations, and keeps free memory for minutes.
func (a *Agent) releaseMemory(changes int) {
	if !a.released || changes >= releaseAfter {
		a.released = true
		debug.FreeOSMemory()
	}
}
