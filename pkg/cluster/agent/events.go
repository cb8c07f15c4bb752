// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// An agent reports as Events of its RopewalkNode when its reconciles begin to fail, when they succeed again, and when there are new
// warnings about its own node. What concerns all nodes at once is no Event: all agents would write one at the same time.

const (
	eventsPath       = "/apis/events.k8s.io/v1/namespaces/default/events" // Events of cluster-scoped objects are in this namespace
	eventController  = "ropewalk.io/agent"
	eventTimeout     = 2 * time.Second
	minEventInterval = 30 * time.Second
	maxEventNote     = 1024 // bytes, by the API
	reasonWarning    = "Warning"
)

// eventReporter remembers what was reported.
type eventReporter struct {
	lastEvent     time.Time
	reportedNotes string // warnings that are known
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

// reportChange writes an Event if the condition or the warnings have changed since the last one. A failure is logged and not retried.
func (a *Agent) reportChange(ctx context.Context, rn *v1alpha1.RopewalkNode, before, after []metav1.Condition, notes []string) {
	if rn.UID == "" {
		return // it was created elsewhere a moment ago
	}
	kind, reason, note := a.changeOf(before, after, strings.Join(notes, "; "))
	if kind == "" || time.Since(a.events.lastEvent) < minEventInterval {
		return
	}
	a.events.lastEvent = time.Now()
	e := apiEvent{
		TypeMeta:   metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: rn.Name + "-", Namespace: "default"},
		EventTime:  metav1.NowMicro(), ReportingController: eventController, ReportingInstance: a.cfg.Node, Action: "Reconcile",
		Reason: reason, Type: kind, Note: strings.ToValidUTF8(note[:min(len(note), maxEventNote)], ""),
		Regarding: map[string]string{
			"apiVersion": v1alpha1.GroupVersion().String(), "kind": v1alpha1.Kind, "name": rn.Name, "uid": string(rn.UID),
		},
	}
	if err := a.client.createEvent(ctx, &e); err != nil {
		a.cfg.Log.Debug("writing an Event failed, dropping it", "reason", reason, "error", err)
	}
}

// changeOf returns an Event's type, reason and note, or an empty type if nothing has changed.
func (a *Agent) changeOf(before, after []metav1.Condition, notes string) (kind, reason, note string) {
	known := a.events.reportedNotes
	now := ready(after)
	if now == nil {
		return "", "", ""
	}
	if now.Status == metav1.ConditionTrue {
		a.events.reportedNotes = notes
	}
	switch was := ready(before); {
	case now.Status != metav1.ConditionTrue && (was == nil || was.Status == metav1.ConditionTrue):
		return "Warning", reasonFailed, now.Message
	case now.Status != metav1.ConditionTrue:
		return "", "", ""
	case notes != "" && notes != known:
		return "Warning", reasonWarning, notes
	case was != nil && was.Status != metav1.ConditionTrue:
		return "Normal", reasonReconciled, "reconciles succeed again"
	}
	return "", "", ""
}

// ready returns the Ready condition, or nil.
func ready(all []metav1.Condition) *metav1.Condition {
	for i := range all {
		if all[i].Type == v1alpha1.ConditionReady {
			return &all[i]
		}
	}
	return nil
}

func (c *client) createEvent(ctx context.Context, e *apiEvent) error {
	body, err := json.Marshal(e)
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err == nil {
		err = c.own.Post().AbsPath(eventsPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("writing an Event of the RopewalkNode %s: %w", e.Regarding["name"], err)
	}
	return nil
}
