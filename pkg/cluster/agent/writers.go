// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
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

// policyCheck has the agent's knowledge of the admission policy.
type policyCheck struct {
	due       time.Time
	retry     time.Duration // the last pause; 0: the check has succeeded
	condition metav1.Condition
}

const (
	checkPeriod = time.Hour // between checks of the policy, and of CRDs
	// policyRetryMin and policyRetryMax bound the pauses while the policy is not in force: Helm creates it moments after the agents.
	policyRetryMin, policyRetryMax = 15 * time.Second, 5 * time.Minute
	// someoneElse is no name of a node: no agent may announce anything for it.
	someoneElse = "ropewalk-policy-check"
)

// policyCondition returns the condition that says whether the API server keeps this agent from writing for other nodes. It tries to, by a dry run.
func (a *Agent) policyCondition(ctx context.Context, rn *v1alpha1.RopewalkNode) metav1.Condition {
	p := &a.policy
	if !time.Now().Before(p.due) {
		found := a.tryPolicy(ctx)
		if kept := p.condition.Type != "" && found.Reason == reasonUnanswered; !kept {
			p.condition = found
		}
		period := checkPeriod
		if found.Status == metav1.ConditionTrue {
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

// tryPolicy tries to announce for another node and for this one, in dry runs.
func (a *Agent) tryPolicy(ctx context.Context) metav1.Condition {
	c := a.client.dryRun()
	err := c.announce(ctx, &node{ObjectMeta: metav1.ObjectMeta{Name: someoneElse, UID: "check"}}, v1alpha1.AnnouncementSpec{})
	n, _, _ := a.cluster.self()
	if err == nil || n == nil {
		return policyConditionOf(err, nil)
	}
	return policyConditionOf(err, c.announce(ctx, n, announce.Full()))
}

// reasonUnanswered is the reason while the API server answers no check, which says nothing of the policy.
const reasonUnanswered = "NotAnswered"

// policyConditionOf returns the condition for the answers to attempts to announce for another node, and for this one. What refuses both is no policy.
func policyConditionOf(foreign, own error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAdmissionPolicy, Status: metav1.ConditionUnknown, Reason: "NotChecked"}
	switch {
	case foreign == nil:
		c.Status, c.Reason = metav1.ConditionFalse, "NotEnforced"
		c.Message = "the API server lets this node's agent write the announcements of other nodes: an attacker who controls one node can announce a key for each other one (policy.enabled in the chart)"
	case isDenied(foreign) && own == nil:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Enforced", "the API server refuses that this node's agent writes announcements of other nodes"
	case isUnanswered(foreign) || isDenied(foreign) && isUnanswered(own):
		c.Reason = reasonUnanswered
		fallthrough
	default:
		c.Message = boundedMessage("the check failed: " + errors.Join(foreign, own).Error())
	}
	return c
}

// isUnanswered reports whether the API server has not judged a request: it did not answer, not in time, or is overloaded.
func isUnanswered(err error) bool {
	if err == nil {
		return false
	}
	_, answered := errors.AsType[*apierrors.StatusError](err)
	return !answered || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// isDenied reports whether an admission policy or webhook refused a request.
func isDenied(err error) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) && strings.Contains(err.Error(), "denied")
}
