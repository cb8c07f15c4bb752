// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// An agent is to be the only writer of its node's objects, and to write no other node's. Neither is in its hands: it reports what it finds.

// observeRival notices another writer of an object, and logs it.
func (a *Agent) observeRival(r *announce.Rival, kind string, o metav1.Object, writer string) {
	before := r.Writes
	if r.Observe(time.Now(), o.GetResourceVersion(), writer) {
		a.cfg.Log.Warn("another program writes an object of this node again and again, writing it seldom from now on: a second machine may have this node's name, or somebody its token",
			"kind", kind, "name", o.GetName(), "writer", writer)
	}
	a.stats.ForeignWrites.Add(r.Writes - before)
}

// pausedBy reports whether not to write because of a rival. It requests a reconcile for when to.
func (a *Agent) pausedBy(r *announce.Rival) bool {
	wait := r.Wait(time.Now())
	if wait > 0 {
		a.queue.AddAfter(clusterChanged, wait)
	}
	return wait > 0
}

// soleWriter returns the condition that says whether there is a rival.
func (a *Agent) soleWriter(rn *v1alpha1.RopewalkNode) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionSoleWriter, Status: metav1.ConditionTrue, Reason: "NoOther", Message: "no other program writes this node's objects"}
	_, _, ra := a.cluster.self()
	for i, kind := range []string{v1alpha1.AnnouncementKind, v1alpha1.Kind} {
		name, present := a.rivals[i].Name()
		if !present {
			continue
		}
		c.Status, c.Reason = metav1.ConditionFalse, "TwoWriters"
		c.Message = fmt.Sprintf("another program, %q, writes the %s of this node: a second machine may have its name, or somebody its token", name, kind)
		if ra != nil && ra.Spec.Writer == name {
			c.Message += fmt.Sprintf("; it announces the key %s at %v", ra.Spec.PublicKey, ra.Spec.Endpoints)
		}
		break
	}
	c.ObservedGeneration = rn.Generation
	return withTransitionTime(c, rn.Status.Conditions)
}

// policyCheck is what is known of the admission policy.
type policyCheck struct {
	due       time.Time
	retry     time.Duration // the last pause; 0: the check has succeeded
	condition metav1.Condition
}

const (
	policyPeriod = time.Hour // between checks
	// policyRetryMin and policyRetryMax bound the pauses while the policy is not in force: Helm creates it moments after the agents.
	policyRetryMin, policyRetryMax = 15 * time.Second, 5 * time.Minute
	// someoneElse is no name of a node: no agent may announce anything for it.
	someoneElse = "ropewalk-policy-check"
)

// policyCondition returns the condition that says whether the API server keeps this agent from writing for other nodes. It tries to, by a dry run.
func (a *Agent) policyCondition(ctx context.Context, rn *v1alpha1.RopewalkNode) metav1.Condition {
	p := &a.policy
	if !time.Now().Before(p.due) {
		p.condition = policyConditionOf(a.client.dryRun().announce(ctx, &node{ObjectMeta: metav1.ObjectMeta{Name: someoneElse, UID: "check"}}, v1alpha1.AnnouncementSpec{}))
		period := policyPeriod
		if p.condition.Status == metav1.ConditionTrue {
			p.retry = 0
		} else {
			p.retry = min(max(2*p.retry, policyRetryMin), policyRetryMax)
			period = p.retry
			a.queue.AddAfter(clusterChanged, 2*period)
		}
		p.due = time.Now().Add(wait.Jitter(period, 0.2))
	}
	c := p.condition
	c.ObservedGeneration = rn.Generation
	return withTransitionTime(c, rn.Status.Conditions)
}

// policyConditionOf returns the condition for the answer to an attempt to write for another node.
func policyConditionOf(err error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAdmissionPolicy, Status: metav1.ConditionUnknown, Reason: "NotChecked"}
	switch {
	case err == nil:
		c.Status, c.Reason = metav1.ConditionFalse, "NotEnforced"
		c.Message = "the API server lets this node's agent write the objects of other nodes: an attacker who controls one node can announce a key for each other one (policy.enabled in the chart)"
	case isDenied(err):
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Enforced", "the API server refuses that this node's agent writes objects of other nodes"
	default:
		c.Message = boundedMessage("the check failed: " + err.Error())
	}
	return c
}

// isDenied reports whether an admission policy or webhook refused a request.
func isDenied(err error) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) && strings.Contains(err.Error(), "denied")
}
