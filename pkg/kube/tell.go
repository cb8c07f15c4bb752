// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
)

// countsDelayPerNode is how long it takes at most, for each node of the cluster, until a changed count is told: with each node that
// joins all others' change, and all together are to write no more than some fifteen times a second.
const countsDelayPerNode = 100 * time.Millisecond

// countsDue tells whether a changed count is to be told now, and sees to it that it will be. That is asked for at each look:
// of two times for the same work, the queue keeps the earlier.
func (a *Agent) countsDue() bool {
	if a.countsDueAt.IsZero() {
		most := max(a.cluster.size(), 1) * int64(countsDelayPerNode)
		a.countsDueAt = time.Now().Add(time.Duration(most/2 + rand.Int64N(most/2)))
	}
	wait := time.Until(a.countsDueAt)
	if wait > 0 {
		a.queue.AddAfter(clusterChanged, wait)
	}
	return wait <= 0
}

// publish writes the node's status, if the others have something to learn from it.
func (a *Agent) publishStatus(ctx context.Context, rn *v1alpha1.RopewalkNode, res result, doing error) error {
	st := res.status
	if res.foundNothing(doing) { // what was said before stays said
		st = *rn.Status.DeepCopy()
		st.Gathers = false
	}
	st.ObservedGeneration = rn.Generation
	st.AgentVersion, st.KernelVersion = a.cfg.Version, kernelVersion()
	notes := res.notes
	if len(st.Plans) > 0 && time.Since(a.lastWrite.plansRefused) < plansRetryPeriod {
		st.Plans, notes = nil, append(slices.Clone(notes), outdatedCRD)
	}
	st.Conditions = []metav1.Condition{readyCondition(rn, notes, doing)}
	said := a.lastWrite.current(rn)
	news := !sameStatus(said, st)
	if news && sameStatus(withCounts(said, st), st) && !a.countsDue() {
		return nil
	}
	a.countsDueAt = time.Time{}
	if !news {
		return nil
	}
	err := a.client.apply(ctx, a.cfg.Node, st)
	switch {
	case err == nil:
		a.lastWrite = writtenStatus{rn.UID, rn.ResourceVersion, st, time.Now(), a.lastWrite.plansRefused}
	case len(st.Plans) > 0 && isFieldUndeclared(err):
		a.lastWrite.plansRefused = time.Now()
		return a.publishStatus(ctx, rn, res, doing)
	}
	return err
}

// plansRetryPeriod is how long a definition without plans is taken to be without: less than two full looks.
const plansRetryPeriod = 5 * time.Minute

// outdatedCRD is for people: nothing else says why others send to this node as if it planned nothing.
const outdatedCRD = "the definition of RopewalkNode is older than the agent, and has no plans, so others do not learn this " +
	"node's: kubectl apply --server-side -k deploy/crd"

// isFieldUndeclared tells that an apply was refused, all of it, since the definition does not have one of its fields.
func isFieldUndeclared(err error) bool {
	return err != nil && strings.Contains(err.Error(), "field not declared in schema")
}

// writtenStatus is what was written last.
type writtenStatus struct {
	uid          types.UID
	version      string // of the object that it was written in place of
	status       v1alpha1.NodeStatus
	at           time.Time
	plansRefused time.Time // when the definition was found to have no plans; zero: never
}

// current is what the cluster has of a node's status: what was written last, if that has only not come back yet.
func (w *writtenStatus) current(rn *v1alpha1.RopewalkNode) v1alpha1.NodeStatus {
	if w.uid == rn.UID && w.version == rn.ResourceVersion && time.Since(w.at) < writeEchoTimeout {
		return w.status
	}
	return rn.Status
}

func sameStatus(a, b v1alpha1.NodeStatus) bool {
	return reflect.DeepEqual(normalized(a), normalized(b))
}

// normalized makes what is absent and what is empty equal, and times that are.
func normalized(st v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	st = *st.DeepCopy()
	for i := range st.Conditions {
		st.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	if len(st.Endpoints) == 0 {
		st.Endpoints = nil
	}
	if len(st.PodCIDRs) == 0 {
		st.PodCIDRs = nil
	}
	return st
}

// withCounts is a status with another's counts.
func withCounts(st, counts v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	st.Peers, st.SpreadsTo, st.StalePeers = counts.Peers, counts.SpreadsTo, counts.StalePeers
	return st
}

// maxNotes bounds a condition's message: at 5,000 nodes there may be as many.
const maxNotes = 10

func readyCondition(rn *v1alpha1.RopewalkNode, notes []string, doing error) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "AsItShouldBe", ObservedGeneration: rn.Generation,
		LastTransitionTime: metav1.Now(),
	}
	if len(notes) > maxNotes {
		notes = append(slices.Clone(notes[:maxNotes]), fmt.Sprintf("and %d more", len(notes)-maxNotes))
	}
	c.Message = strings.Join(notes, "; ")
	if doing != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Failed", doing.Error()
	}
	c.Message = strings.ToValidUTF8(c.Message[:min(len(c.Message), 4096)], "")
	for _, was := range rn.Status.Conditions {
		if was.Type == c.Type && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	return c
}

func kernelVersion() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
