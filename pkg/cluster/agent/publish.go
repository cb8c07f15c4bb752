// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// publisher remembers what an agent has written to the API.
type publisher struct {
	instance    string // the agent's name as a writer
	announced   written[v1alpha1.AnnouncementSpec]
	lastWrite   written[v1alpha1.NodeStatus]
	lastNotes   string            // warnings about this node alone, of lastWrite
	countsDueAt time.Time         // when changed counts are published; zero: none changed
	rivals      [2]announce.Rival // of the announcement, and of the status
	definitions definitions
	policy      policyCheck
	events      eventReporter
}

// publish writes the node's announcement and then its status, if they differ from the cluster's. Each is written if the other fails. An agent whose
// announcement the API server refuses is not ready: other nodes do not know what it does.
func (a *Agent) publish(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, res result, reconcileErr error) error {
	announced := a.publishAnnouncement(ctx, n, &res, reconcileErr)
	a.stats.Ready.Store(reconcileErr == nil && !isRefused(announced))
	if res.failedWithoutEndpoints(reconcileErr) { // the last published status stays
		res.status = *rn.Status.DeepCopy()
	}
	err := errors.Join(announced, a.publishStatus(ctx, rn, res, errors.Join(reconcileErr, announced)))
	if isFieldUndeclared(err) || apierrors.IsNotFound(announced) {
		a.definitions = definitions{} // they have changed
	}
	return err
}

// isRefused reports whether the API server would refuse the same write again. It may take it after a timeout.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || isFieldUndeclared(err)
}

// publishAnnouncement writes what other nodes need of this one.
func (a *Agent) publishAnnouncement(ctx context.Context, n *node, res *result, reconcileErr error) error {
	_, _, ra := a.cluster.self()
	if ra == nil {
		ra = &v1alpha1.RopewalkAnnouncement{}
	}
	has := v1alpha1.AnnouncementSpec{}
	if ownedBy(ra, n) { // else it has the facts of an earlier machine of this name
		has = ra.Spec
	}
	has = a.announced.current(ra, has)
	next := res.announcement
	if res.failedWithoutEndpoints(reconcileErr) { // the last one stays
		next = has
		next.Gathers = false
	}
	rival := &a.rivals[0]
	a.observeRival(rival, v1alpha1.AnnouncementKind, ra, ra.Spec.Writer)
	if announce.Same(&has, &next) {
		return nil
	}
	if a.pausedBy(rival) {
		return nil
	}
	next.Writer = a.instance
	if err := a.client.announce(ctx, n, next); err != nil {
		return err
	}
	a.announced.wrote(ra, next)
	rival.Wrote(time.Now(), a.instance)
	return nil
}

// publishStatus writes what people need of this node. Only its own agent watches it. failed is the error of the reconcile and of the announcement.
func (a *Agent) publishStatus(ctx context.Context, rn *v1alpha1.RopewalkNode, res result, failed error) error {
	st := res.status
	st.ObservedGeneration, st.AgentVersion = rn.Generation, a.cfg.Version
	st.KernelVersion, _ = kernel.Uname()
	notes := res.notes
	if res.clusterNote != "" {
		notes = append(slices.Clone(notes), res.clusterNote)
	}
	rival := &a.rivals[1]
	a.observeRival(rival, v1alpha1.Kind, rn, rn.Status.Writer)
	st.Conditions = append([]metav1.Condition{readyCondition(rn, notes, failed), a.soleWriter(rn), a.policyCondition(ctx, rn)}, proofConditions(rn, res.proofs)...)
	a.stats.conditions.Store(&st.Conditions)
	current, own := a.lastWrite.current(rn, rn.Status), strings.Join(res.notes, "; ")
	changed := !sameStatus(current, st)
	delayed := changed && a.lastWrite.uid == rn.UID && a.lastNotes == own && sameStatus(urgent(current), urgent(st)) && !a.countsDue()
	if !delayed {
		a.countsDueAt = time.Time{}
	}
	if !changed || delayed || a.pausedBy(rival) {
		a.reportChange(ctx, rn, current.Conditions, st.Conditions, res.notes) // a change that came too soon before
		return nil
	}
	st.Writer = a.instance
	if err := a.client.apply(ctx, a.cfg.Node, st); err != nil {
		return err
	}
	a.lastWrite.wrote(rn, st)
	a.lastNotes = own
	rival.Wrote(time.Now(), a.instance)
	a.reportChange(ctx, rn, current.Conditions, st.Conditions, res.notes)
	a.reportConditions(ctx, rn, current.Conditions, st.Conditions)
	return nil
}

// countsDelayPerNode, times the number of nodes, is the longest delay of a changed count, or of a
// note that all nodes have. Each node that joins changes the counts of all others. Together they
// must not write more than about seventy times a second.
const countsDelayPerNode = 20 * time.Millisecond

// countsDue reports whether a changed count is to be published now. Otherwise it requests a reconcile for the time when it is.
// Each reconcile requests it again: of two delays for one trigger, the queue keeps the earlier.
func (a *Agent) countsDue() bool {
	if a.countsDueAt.IsZero() {
		longest := time.Duration(max(a.cluster.size(), 1)) * countsDelayPerNode
		a.countsDueAt = time.Now().Add(longest/2 + rand.N(longest/2))
	}
	wait := time.Until(a.countsDueAt)
	if wait > 0 {
		a.queue.AddAfter(clusterChanged, wait)
	}
	return wait <= 0
}
