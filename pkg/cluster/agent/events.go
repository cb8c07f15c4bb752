// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// An agent reports as Events of its RopewalkNode when its reconciles begin to fail, and when they
// succeed again. It also reports conditions that become others, and new warnings about its own
// node. One agent reports refused RopewalkPeers (external_status.go). What concerns all nodes at
// once is no Event: all agents would write one at the same time.

const (
	eventsPath       = "/apis/events.k8s.io/v1/namespaces/default/events" // Events of cluster-scoped objects are in this namespace
	eventController  = "ropewalk.io/agent"
	eventTimeout     = 2 * time.Second
	minEventInterval = 30 * time.Second
	maxEventNote     = 1024 // bytes, by the API
	reasonWarning    = "Warning"
)

// eventReporter remembers what Events have reported.
type eventReporter struct {
	lastEvent  time.Time
	reported   *reportedState                    // nil: nothing was compared yet
	conditions map[string]metav1.ConditionStatus // by condition, the last status but Unknown; nil: nothing was compared yet
}

// reportedState is a node's state in an Event.
type reportedState struct {
	failing bool
	notes   string // warnings, of the last success while reconciles fail
}

// apiEvent has the fields of an Event (events.k8s.io/v1) that the agent writes.
type apiEvent struct {
	metav1.TypeMeta     `json:",inline"`
	metav1.ObjectMeta   `json:"metadata"`
	EventTime           metav1.MicroTime  `json:"eventTime"`
	ReportingController string            `json:"reportingController"`
	ReportingInstance   string            `json:"reportingInstance"`
	Action              string            `json:"action"`
	Reason              string            `json:"reason"`
	Type                string            `json:"type"`
	Note                string            `json:"note"`
	Regarding           map[string]string `json:"regarding"`
}

// reportChange writes an Event if the condition or the warnings differ from the last report.
// before has the condition that an earlier agent published. An Event that comes too soon after
// the last is written later, if it still holds then. A failure is logged and not retried.
func (a *Agent) reportChange(ctx context.Context, rn *v1alpha1.RopewalkNode, before, after []metav1.Condition, notes []string) {
	now := meta.FindStatusCondition(after, v1alpha1.ConditionReady)
	if rn.UID == "" || now == nil {
		return // it was created elsewhere a moment ago
	}
	last := a.events.reported
	if last == nil {
		was := meta.FindStatusCondition(before, v1alpha1.ConditionReady)
		last = &reportedState{failing: was != nil && was.Status != metav1.ConditionTrue}
	}
	current := reportedState{now.Status != metav1.ConditionTrue, strings.Join(notes, "; ")}
	if current.failing {
		current.notes = last.notes
	}
	kind, reason, note := changeOf(*last, current, now.Message)
	wait := minEventInterval - time.Since(a.events.lastEvent)
	if kind != "" && wait > 0 {
		a.queue.AddAfter(clusterChanged, wait)
		return
	}
	a.events.reported = &current
	if kind == "" {
		return
	}
	a.events.lastEvent = time.Now()
	a.createEvent(ctx, regarding{v1alpha1.Kind, rn.Name, rn.UID}, kind, reason, note)
}

// reportConditions writes an Event for each condition but Ready that became True or False. Each node begins permissive, so Strict is reported once it was
// True, and the other conditions once they were False. A change to Unknown is not reported: each start of an agent begins with it.
func (a *Agent) reportConditions(ctx context.Context, rn *v1alpha1.RopewalkNode, before, after []metav1.Condition) {
	if a.events.conditions == nil {
		a.events.conditions = map[string]metav1.ConditionStatus{}
		for _, c := range before {
			a.events.conditions[c.Type] = c.Status
		}
	}
	for _, c := range after {
		was := a.events.conditions[c.Type]
		if c.Type == v1alpha1.ConditionReady || c.Status == metav1.ConditionUnknown || c.Status == was || rn.UID == "" {
			continue
		}
		a.events.conditions[c.Type] = c.Status
		if kind := conditionEvent(c, was); kind != "" {
			a.createEvent(ctx, regarding{v1alpha1.Kind, rn.Name, rn.UID}, kind, c.Reason, c.Type+": "+c.Message)
		}
	}
}

// conditionEvent returns the type of the Event about a condition whose last known status was another one ("": none was known); "": no Event.
func conditionEvent(c metav1.Condition, was metav1.ConditionStatus) string {
	switch {
	case c.Status == metav1.ConditionTrue && (was != "" || c.Type == proof.Strict):
		return "Normal"
	case c.Status == metav1.ConditionFalse && (was == metav1.ConditionTrue || c.Type != proof.Strict):
		return "Warning"
	}
	return ""
}

// regarding is the object that an Event is about.
type regarding struct {
	kind, name string
	uid        types.UID
}

// createEvent writes an Event. A failure is logged and not retried.
func (a *Agent) createEvent(ctx context.Context, o regarding, kind, reason, note string) {
	e := apiEvent{
		TypeMeta:   metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: o.name + "-", Namespace: "default"},
		EventTime:  metav1.NowMicro(), ReportingController: eventController, ReportingInstance: a.cfg.Node, Action: "Reconcile",
		Reason: reason, Type: kind, Note: strings.ToValidUTF8(note[:min(len(note), maxEventNote)], ""),
		Regarding: map[string]string{
			"apiVersion": v1alpha1.GroupVersion().String(), "kind": o.kind, "name": o.name, "uid": string(o.uid),
		},
	}
	if err := a.client.writeEvent(ctx, &e); err != nil {
		a.cfg.Log.Debug("writing an Event failed, dropping the Event", "event_reason", reason, "error", err)
	}
}

// changeOf returns an Event's type, reason and note, or an empty type if nothing has changed.
// message is the condition's.
func changeOf(last, now reportedState, message string) (kind, reason, note string) {
	switch {
	case now.failing && !last.failing:
		return "Warning", reasonFailed, message
	case now.failing:
		return "", "", ""
	case now.notes != "" && now.notes != last.notes:
		return "Warning", reasonWarning, now.notes
	case last.failing:
		return "Normal", reasonReconciled, "reconciles succeed again"
	}
	return "", "", ""
}

func (c *client) writeEvent(ctx context.Context, e *apiEvent) error {
	body, err := json.Marshal(e)
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err == nil {
		err = c.own.Post().AbsPath(eventsPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("writing an Event of the %s %s: %w", e.Regarding["kind"], e.Regarding["name"], err)
	}
	return nil
}
