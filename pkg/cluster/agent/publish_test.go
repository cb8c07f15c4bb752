// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

func TestChangedCountIsPublishedOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newTestAgent(t, t.TempDir(), nil)
		a.cluster.count.Store(1000) // with 1000 nodes, a count is delayed by 10 s at least
		a.queue.AddAfter(clusterChanged, clusterDebounce)
		if a.countsDue() {
			t.Error("published at once")
		}
		began, reconciles := time.Now(), 0
		for due := false; !due; reconciles++ {
			w, _ := a.queue.Get()
			due = a.countsDue()
			a.queue.Done(w)
		}
		if took := time.Since(began); reconciles != 2 || took < 10*time.Second || took > 20*time.Second {
			t.Errorf("published after %s and %d reconciles", took, reconciles)
		}
	})
}

// TestNoteOfAllNodesIsDelayed: a node that joins gives all others this note for a moment. They must not all write it.
func TestNoteOfAllNodesIsDelayed(t *testing.T) {
	a, api, _ := newSyncedAgent(t, nil, ownedByNodeA())
	a.cluster.count.Store(200)
	publish := func(what string, res result, err error, writes int) {
		t.Helper()
		before := api.agents.size()
		res.announcement = v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Endpoints: []v1alpha1.Endpoint{"192.0.2.1:51820"}}
		_, rn, _ := a.cluster.self()
		if err := a.publishStatus(t.Context(), rn, res, err); err != nil {
			t.Fatal(err)
		}
		if got := api.agents.size() - before; got != writes {
			t.Errorf("%s: %d writes, want %d", what, got, writes)
		}
	}
	publish("the first status", result{}, nil, 1)
	publish("a note of all nodes", result{clusterNote: "some nodes have no tunnel"}, nil, 0)
	publish("it is gone", result{}, nil, 0)
	publish("a note of this node", result{notes: []string{"no pod prefixes"}, clusterNote: "some nodes have no tunnel"}, nil, 1)
	publish("a failure", result{notes: []string{"no pod prefixes"}}, errHost, 1)
	publish("success", result{notes: []string{"no pod prefixes"}}, nil, 1)
	a.countsDueAt = time.Now().Add(-time.Second)
	publish("a note of all nodes, when it is due", result{notes: []string{"no pod prefixes"}, clusterNote: "some nodes have no tunnel"}, nil, 1)
}

func TestReadyConditionReportsErrors(t *testing.T) {
	long := metav1.NewTime(time.Unix(1, 0))
	was := &v1alpha1.RopewalkNode{Status: v1alpha1.NodeStatus{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: long,
	}}}}
	c := readyCondition(was, []string{"the node opted out"}, nil)
	if c.Status != metav1.ConditionTrue || c.Message != "the node opted out" || c.LastTransitionTime != long {
		t.Errorf("got %+v, want Status %v, Message \"the node opted out\", LastTransitionTime %v", c, metav1.ConditionTrue, long)
	}
	c = readyCondition(was, nil, errors.New("it is broken"))
	if c.Status != metav1.ConditionFalse || c.Message != "it is broken" || c.LastTransitionTime == long {
		t.Errorf("got %+v, want Status %v, Message \"it is broken\", LastTransitionTime other than %v", c, metav1.ConditionFalse, long)
	}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("n%d: %s", i, strings.Repeat("x", 1000)))
	}
	if c = readyCondition(was, many, nil); len(c.Message) > 4096 {
		t.Errorf("message of %d bytes", len(c.Message))
	}
}

func TestSameStatusIgnoresTimesAndWriters(t *testing.T) {
	a := v1alpha1.NodeStatus{KeyGeneration: 1, Peers: 1, Conditions: []metav1.Condition{{Type: "Ready", LastTransitionTime: metav1.Now()}}}
	b := *a.DeepCopy()
	b.Writer, b.Conditions[0].LastTransitionTime = "another", metav1.NewTime(time.Unix(1, 0))
	if !sameStatus(a, b) {
		t.Error("transition times or writers make a difference")
	}
	b.Peers = 2
	if sameStatus(a, b) || !sameStatus(urgent(a), urgent(b)) {
		t.Error("counts are not separated from the rest")
	}
}

func TestWrittenStatusStandsUntilEchoed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, fresh := v1alpha1.NodeStatus{Peers: 1}, v1alpha1.NodeStatus{Peers: 2}
		rn := &v1alpha1.RopewalkNode{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "1"}, Status: old}
		var w written[v1alpha1.NodeStatus]
		w.wrote(rn, fresh)
		if got := w.current(rn, rn.Status); !sameStatus(got, fresh) {
			t.Errorf("got %+v", got)
		}
		later := rn.DeepCopy()
		later.ResourceVersion = "2"
		if got := w.current(later, later.Status); !sameStatus(got, old) {
			t.Errorf("after a write by another client: %+v", got)
		}
		time.Sleep(writeEchoTimeout)
		if got := w.current(rn, rn.Status); !sameStatus(got, old) {
			t.Errorf("after the echo timeout: %+v", got)
		}
	})
}
