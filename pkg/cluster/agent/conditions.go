// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// written is the last value that an agent wrote to an object.
type written[T any] struct {
	uid     types.UID
	version string // resourceVersion of the object before the write
	value   T
	at      time.Time
}

// writeEchoTimeout bounds how long the informer may take to deliver an object that the agent wrote.
const writeEchoTimeout = 10 * time.Second

// wrote records a write to the object that the informer had.
func (w *written[T]) wrote(o metav1.Object, value T) {
	*w = written[T]{o.GetUID(), o.GetResourceVersion(), value, time.Now()}
}

// current returns the value that the cluster has: the last written one, until the informer has delivered it.
func (w *written[T]) current(o metav1.Object, has T) T {
	if !w.at.IsZero() && w.uid == o.GetUID() && w.version == o.GetResourceVersion() && time.Since(w.at) < writeEchoTimeout {
		return w.value
	}
	return has
}

// sameStatus compares statuses of any writers.
func sameStatus(a, b v1alpha1.NodeStatus) bool {
	return reflect.DeepEqual(normalized(a), normalized(b))
}

// normalized returns a copy without the writer and transition times.
func normalized(st v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	st = *st.DeepCopy()
	st.Writer = ""
	for i := range st.Conditions {
		st.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	if st.StrictSince != nil {
		st.StrictSince = &metav1.Time{Time: time.Unix(st.StrictSince.Unix(), 0)}
	}
	return st
}

// urgent returns what of a status is published at once: all but the counts, and the messages of conditions that keep their status. All nodes may
// change these at the same time.
func urgent(st v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	st = *st.DeepCopy()
	st.Peers, st.SpreadsTo, st.StalePeers, st.MeshUID, st.MeshGeneration = 0, 0, nil, "", 0
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type != v1alpha1.ConditionReady || c.Status == metav1.ConditionTrue {
			c.Message = ""
		}
	}
	return st
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
	reasonCleanedUp  = "CleanedUp" // the node has no agent any more
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

// withTransitionTime returns a condition with the time since which it has its status.
func withTransitionTime(c metav1.Condition, before []metav1.Condition) metav1.Condition {
	all := slices.Clone(before)
	meta.SetStatusCondition(&all, c)
	return *meta.FindStatusCondition(all, c.Type)
}
