// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// The agent of the oldest node in mesh mode writes the status of all RopewalkPeers. So the number
// of writes does not depend on the number of nodes. If the status is still wrong after a while,
// the agent of the next node writes it, among the ten oldest.
const (
	maxStatusWriters = 10
	writerTimeout    = 30 * time.Second // per older node
	// maxStatusWrites bounds the writes of one reconcile. The others follow a second later.
	maxStatusWrites = 20
	moreWritesAfter = time.Second
	retryWriteAfter = time.Minute
	// minWriteInterval is the time between two writes for one RopewalkPeer whose spec does not change: a hostile node may claim a
	// prefix again and again.
	minWriteInterval = 30 * time.Second
)

// externalOutcome has a reconcile's decisions about the external peers.
type externalOutcome struct {
	refused []mesh.Refusal
	nodes   []mesh.Node
	self    mesh.Node
}

// externalStatus remembers what an agent knows about the status of RopewalkPeers.
type externalStatus struct {
	differsSince map[string]time.Time        // by name
	written      map[string]writtenCondition // by name, for minWriteInterval
	loggedAs     map[string]string           // reasons of refusals, by name
}

// writtenCondition is a condition that the agent wrote.
type writtenCondition struct {
	uid       types.UID // of the RopewalkPeer
	condition metav1.Condition
	at        time.Time
}

// publishExternal logs refused peers, and writes the status of the RopewalkPeers if this agent is the one to do so.
func (a *Agent) publishExternal(ctx context.Context, o *externalOutcome) {
	if o == nil {
		return
	}
	refused := make(map[string]mesh.Refusal, len(o.refused))
	for _, r := range o.refused {
		refused[r.Peer] = r
	}
	a.logRefusals(refused)
	rank := mesh.Rank(&o.self, o.nodes)
	if rank >= maxStatusWriters {
		return
	}
	before, writes, failed := a.external, 0, false
	a.external = externalStatus{differsSince: map[string]time.Time{}, written: map[string]writtenCondition{}, loggedAs: a.external.loggedAs}
	for _, rp := range a.cluster.external.objects() {
		want := acceptedCondition(rp, refused)
		have := before.current(rp)
		if w, ok := before.written[rp.Name]; ok && time.Since(w.at) < minWriteInterval {
			a.external.written[rp.Name] = w
		}
		if have != nil && sameCondition(*have, want) {
			continue
		}
		since, differed := before.differsSince[rp.Name]
		if !differed {
			since = time.Now()
		}
		a.external.differsSince[rp.Name] = since
		switch wait := max(time.Until(since.Add(time.Duration(rank)*writerTimeout)), before.pause(rp)); {
		case wait > 0:
			a.queue.AddAfter(clusterChanged, wait)
		case failed: // the others would wait for the same API server
		case writes >= maxStatusWrites:
			a.queue.AddAfter(clusterChanged, moreWritesAfter)
		default:
			writes++
			failed = !a.writeAccepted(ctx, rp, have, want)
		}
	}
}

// logRefusals logs the refusals that the last reconcile did not have.
func (a *Agent) logRefusals(refused map[string]mesh.Refusal) {
	logged := make(map[string]string, len(refused))
	for name, r := range refused {
		logged[name] = r.Reason
		if a.external.loggedAs[name] != r.Reason {
			a.cfg.Log.Warn("RopewalkPeer refused, no node exchanges traffic with this peer until the object is corrected", "peer", name, "reason", r.Reason)
		}
	}
	a.external.loggedAs = logged
}

// writeAccepted writes a condition and, if the peer is refused or no longer is, an Event. After a failure, which is logged and
// retried, it returns false.
func (a *Agent) writeAccepted(ctx context.Context, rp *v1alpha1.RopewalkPeer, have *metav1.Condition, want metav1.Condition) bool {
	status := v1alpha1.PeerStatus{Conditions: []metav1.Condition{want}}
	if err := a.client.applyStatus(ctx, v1alpha1.PeerResource, v1alpha1.PeerKind, rp.Name, status); err != nil {
		a.cfg.Log.Warn("writing the status of a RopewalkPeer failed, retrying", "peer", rp.Name, "after", retryWriteAfter, "error", err)
		a.queue.AddAfter(clusterChanged, retryWriteAfter)
		return false
	}
	delete(a.external.differsSince, rp.Name)
	a.external.written[rp.Name] = writtenCondition{rp.UID, want, time.Now()}
	kind := "Normal"
	if want.Status != metav1.ConditionTrue {
		kind = "Warning"
	} else if have == nil || have.Status == metav1.ConditionTrue {
		return true
	}
	a.createEvent(ctx, regarding{v1alpha1.PeerKind, rp.Name, rp.UID}, kind, want.Reason, want.Message)
	return true
}

// pause returns the time until a RopewalkPeer may be written again; 0 or less: now.
func (s *externalStatus) pause(rp *v1alpha1.RopewalkPeer) time.Duration {
	w, ok := s.written[rp.Name]
	if !ok || w.uid != rp.UID || w.condition.ObservedGeneration != rp.Generation {
		return 0
	}
	return time.Until(w.at.Add(minWriteInterval))
}

// current returns the condition that the cluster has: the last written one, until the informer has delivered it.
func (s *externalStatus) current(rp *v1alpha1.RopewalkPeer) *metav1.Condition {
	if w, ok := s.written[rp.Name]; ok && w.uid == rp.UID && time.Since(w.at) < writeEchoTimeout {
		return &w.condition
	}
	return meta.FindStatusCondition(rp.Status.Conditions, v1alpha1.ConditionAccepted)
}

// sameCondition reports whether two conditions differ at most in the transition time.
func sameCondition(a, b metav1.Condition) bool {
	a.LastTransitionTime = b.LastTransitionTime
	return a == b
}

// acceptedCondition returns the Accepted condition. Its message depends on the spec and on the refusals alone, so that all writers write the same.
func acceptedCondition(rp *v1alpha1.RopewalkPeer, refused map[string]mesh.Refusal) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted, ObservedGeneration: rp.Generation,
		Message: nodesMessage(&rp.Spec),
	}
	if r, is := refused[rp.Name]; is {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonConflict, r.Reason
		if r.Invalid {
			c.Reason = v1alpha1.ReasonInvalid
		}
	}
	return withTransitionTime(c, rp.Status.Conditions)
}

// nodesMessage says which nodes have a peer. It lists no nodes: a writer may know other nodes' labels from an earlier time.
func nodesMessage(spec *v1alpha1.PeerSpec) string {
	selector := selectorText(&spec.NodeSelector)
	if selector == "" {
		return "a peer of all nodes in mode mesh"
	}
	return "a peer of the nodes in mode mesh with the labels " + selector
}
