// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// TestEventsReportChangesOfOneNode: what all nodes have in common is no Event.
func TestEventsReportChangesOfOneNode(t *testing.T) {
	rn := ownedByNodeA()
	a, api, _ := newSyncedAgent(t, nil, rn)
	for _, step := range []struct {
		what        string
		notes       []string
		clusterNote string
		err         error
		soon        bool // after the last Event
		want        string
	}{
		{what: "first reconcile"},
		{what: "a note of the cluster", clusterNote: "some nodes have no tunnel yet"},
		{what: "a warning", notes: []string{"no pod prefixes"}, want: "Warning Warning no pod prefixes"},
		{what: "the same warning", notes: []string{"no pod prefixes"}, clusterNote: "other"},
		{what: "a failure", err: errors.New("no TUN device"), want: "Warning Failed no TUN device"},
		{what: "another failure", err: errors.New("no module")},
		{what: "success", notes: []string{"no pod prefixes"}, want: "Normal Reconciled reconciles succeed again"},
		{what: "a failure at once", err: errors.New("again"), soon: true},
		{what: "success at once", notes: []string{"no pod prefixes"}, soon: true},
		{what: "a failure that lasts", err: errors.New("again"), soon: true},
		{what: "the failure, later", err: errors.New("again"), want: "Warning Failed again"},
		{what: "a long warning", notes: []string{strings.Repeat("x", 2000)}, want: "Warning Warning " + strings.Repeat("x", maxEventNote)},
	} {
		if !step.soon {
			a.events.lastEvent = time.Time{}
		}
		before := len(api.events)
		res := result{announcement: v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Endpoints: []v1alpha1.Endpoint{"192.0.2.1:51820"}}, notes: step.notes, clusterNote: step.clusterNote}
		q := &recordingQueue{TypedRateLimitingInterface: a.queue}
		a.queue = q
		if err := a.publishStatus(t.Context(), rn, res, step.err); err != nil {
			t.Fatal(err)
		}
		a.queue = q.TypedRateLimitingInterface
		if delayed := step.soon && step.err != nil || step.clusterNote != ""; delayed != (len(q.delays) > 0) {
			t.Errorf("%s: reconciles requested after %v", step.what, q.delays)
		}
		got := ""
		for _, e := range api.events[before:] {
			got += e.Type + " " + e.Reason + " " + e.Note
			if e.Regarding["uid"] != string(rn.UID) || e.Regarding["name"] != "a" || e.ReportingInstance != "a" || e.EventTime.IsZero() {
				t.Errorf("%s: %+v", step.what, e)
			}
		}
		if got != step.want {
			t.Errorf("%s: got %q, want %q", step.what, got, step.want)
		}
	}
}
