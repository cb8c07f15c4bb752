// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
)

// publisher remembers what an agent has written to the API.
type publisher struct {
	lastWrite   writtenStatus
	countsDueAt time.Time // when changed counts are published; zero: none changed
	events      eventReporter
}

// writtenStatus is the last status that an agent wrote.
type writtenStatus struct {
	uid          types.UID
	version      string // resourceVersion of the object before the write
	status       v1alpha1.NodeStatus
	notes        string // warnings about this node alone
	at           time.Time
	plansRefused time.Time // when the CRD was last found to lack plans; zero: never
}

// writeEchoTimeout bounds how long the informer may take to deliver an object that the agent wrote.
const writeEchoTimeout = 10 * time.Second

// plansRetryPeriod is how long a CRD without plans is assumed to stay so. It is less than two resync periods.
const plansRetryPeriod = 5 * time.Minute

// outdatedCRD is a note for administrators. Nothing else shows why other nodes ignore this node's port plan.
const outdatedCRD = "the RopewalkNode CRD is older than the agent and has no field for port plans, podCIDRSource, encryptsNodes, strictSince or meshUID, so other nodes do not get " +
	"this node's: kubectl apply --server-side -k deploy/crd"

// hasNewFields reports whether a status has fields that an older CRD may lack.
func hasNewFields(st v1alpha1.NodeStatus) bool {
	return len(st.Plans) > 0 || st.PodCIDRSource != "" || st.EncryptsNodes || st.StrictSince != nil || st.MeshUID != ""
}

// publishStatus writes the node's status if it differs from the cluster's.
func (a *Agent) publishStatus(ctx context.Context, rn *v1alpha1.RopewalkNode, res result, reconcileErr error) error {
	st := res.status
	if res.failedWithoutEndpoints(reconcileErr) { // the last published status stays
		st = *rn.Status.DeepCopy()
		st.Gathers = false
	}
	st.ObservedGeneration = rn.Generation
	st.AgentVersion = a.cfg.Version
	st.KernelVersion, _ = kernel.Uname()
	notes := res.notes
	if hasNewFields(st) && time.Since(a.lastWrite.plansRefused) < plansRetryPeriod {
		st.Plans, st.PodCIDRSource, st.EncryptsNodes, st.StrictSince, st.MeshUID = nil, "", false, nil, ""
		notes = append(slices.Clone(notes), outdatedCRD)
	}
	own := notes
	if res.clusterNote != "" {
		notes = append(slices.Clone(notes), res.clusterNote)
	}
	st.Conditions = append([]metav1.Condition{readyCondition(rn, notes, reconcileErr)}, proofConditions(rn, res.proofs)...)
	current := a.lastWrite.current(rn)
	changed := !sameStatus(current, st)
	delayed := changed && sameStatus(a.withDelayable(rn, current, st, own), st) && !a.countsDue()
	if !delayed {
		a.countsDueAt = time.Time{}
	}
	if !changed || delayed {
		a.reportChange(ctx, rn, current.Conditions, st.Conditions, own) // one that came too soon before
		return nil
	}
	err := a.client.apply(ctx, a.cfg.Node, st)
	switch {
	case err == nil:
		a.lastWrite = writtenStatus{rn.UID, rn.ResourceVersion, st, strings.Join(own, "; "), time.Now(), a.lastWrite.plansRefused}
		a.reportChange(ctx, rn, current.Conditions, st.Conditions, own)
		a.reportProofs(ctx, rn, current.Conditions, st.Conditions)
	case hasNewFields(st) && isFieldUndeclared(err):
		a.lastWrite.plansRefused = time.Now()
		return a.publishStatus(ctx, rn, res, reconcileErr)
	}
	return err
}

// countsDelayPerNode, times the number of nodes, is the longest delay of a changed count, or of a note that all nodes have. Each node that
// joins changes those of all others. Together they must not write more than about fifteen times a second.
const countsDelayPerNode = 100 * time.Millisecond

// countsDelayPerPair, times the square of the number of nodes, is the longest delay if that is longer, from 400 nodes on. All agents receive each
// write, some 2 kB: whatever the number of nodes, the API server sends 12 MB/s at most for this reason.
const countsDelayPerPair = 250 * time.Microsecond

// countsDelay returns the longest delay in a cluster of n nodes.
func countsDelay(n int64) time.Duration {
	return max(time.Duration(n)*countsDelayPerNode, time.Duration(n*n)*countsDelayPerPair)
}

// countsDue reports whether a changed count is to be published now. Otherwise it requests a reconcile for the time when it is.
// Each reconcile requests it again: of two delays for one trigger, the queue keeps the earlier.
func (a *Agent) countsDue() bool {
	if a.countsDueAt.IsZero() {
		longest := countsDelay(max(a.cluster.size(), 1))
		a.countsDueAt = time.Now().Add(longest/2 + rand.N(longest/2))
	}
	wait := time.Until(a.countsDueAt)
	if wait > 0 {
		a.queue.AddAfter(clusterChanged, wait)
	}
	return wait <= 0
}

// isFieldUndeclared reports whether the API server rejected an apply because the CRD lacks one of its fields.
func isFieldUndeclared(err error) bool {
	return err != nil && strings.Contains(err.Error(), "field not declared in schema")
}

// current returns the status that the cluster has: the last written one, until the informer has delivered it.
func (w *writtenStatus) current(rn *v1alpha1.RopewalkNode) v1alpha1.NodeStatus {
	if w.uid == rn.UID && w.version == rn.ResourceVersion && time.Since(w.at) < writeEchoTimeout {
		return w.status
	}
	return rn.Status
}

func sameStatus(a, b v1alpha1.NodeStatus) bool {
	return reflect.DeepEqual(normalized(a), normalized(b))
}

// normalized returns a copy without transition times, and with nil in place of empty lists.
func normalized(st v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	st = *st.DeepCopy()
	for i := range st.Conditions {
		st.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	if len(st.Endpoints) == 0 {
		st.Endpoints = nil
	}
	if st.StrictSince != nil {
		st.StrictSince = &metav1.Time{Time: time.Unix(st.StrictSince.Unix(), 0)}
	}
	if len(st.PodCIDRs) == 0 {
		st.PodCIDRs = nil
	}
	return st
}

// withDelayable returns a status with the parts of the next one that may be published later: the counts, and the note that all nodes have
// at the same time.
func (a *Agent) withDelayable(rn *v1alpha1.RopewalkNode, st, next v1alpha1.NodeStatus, notes []string) v1alpha1.NodeStatus {
	st = withCounts(st, next)
	before, now := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady)
	if before != nil && now != nil && before.Status == metav1.ConditionTrue && now.Status == metav1.ConditionTrue &&
		before.ObservedGeneration == now.ObservedGeneration && sameVerdicts(st.Conditions, next.Conditions) && a.lastWrite.uid == rn.UID && a.lastWrite.notes == strings.Join(notes, "; ") {
		st.Conditions = next.Conditions
	}
	return st
}

// withCounts returns st with the counts of another status.
func withCounts(st, counts v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	st.Peers, st.SpreadsTo, st.StalePeers = counts.Peers, counts.SpreadsTo, counts.StalePeers
	st.MeshUID, st.MeshGeneration = counts.MeshUID, counts.MeshGeneration
	return st
}

// sameVerdicts reports whether two lists of conditions differ in messages at most.
func sameVerdicts(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
	})
}

// proofConditions returns the conditions of mode mesh; nil in another.
func proofConditions(rn *v1alpha1.RopewalkNode, o *meshmode.Outcome) (all []metav1.Condition) {
	if o == nil {
		return nil
	}
	for _, c := range o.Conditions {
		all = append(all, withTransitionTime(metav1.Condition{
			Type: c.Type, Status: metav1.ConditionStatus(c.Status), Reason: c.Reason, Message: boundedMessage(c.Message), ObservedGeneration: rn.Generation,
		}, rn.Status.Conditions))
	}
	return all
}

func boundedMessage(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}

// Reasons of the Ready condition.
const (
	reasonReconciled = "Reconciled"
	reasonFailed     = "Failed"
)

// maxNotes bounds the notes in a condition's message. At 5,000 nodes there may be as many.
const maxNotes = 10

// maxMessage bounds a condition's message, in bytes. The API allows eight times as much.
const maxMessage = 4096

// readyCondition returns the Ready condition for the outcome of a reconcile.
func readyCondition(rn *v1alpha1.RopewalkNode, notes []string, reconcileErr error) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonReconciled, ObservedGeneration: rn.Generation,
	}
	if len(notes) > maxNotes {
		notes = append(slices.Clone(notes[:maxNotes]), fmt.Sprintf("and %d more", len(notes)-maxNotes))
	}
	c.Message = strings.Join(notes, "; ")
	if reconcileErr != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonFailed, reconcileErr.Error()
	}
	c.Message = boundedMessage(c.Message)
	return withTransitionTime(c, rn.Status.Conditions)
}
