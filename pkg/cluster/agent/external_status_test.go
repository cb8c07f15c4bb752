// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// newPublishingAgent returns an agent of the node "a" that has the RopewalkPeers of its API.
func newPublishingAgent(t *testing.T, peers ...*v1alpha1.RopewalkPeer) (*Agent, *fakeAPI) {
	t.Helper()
	a, api, _ := newSyncedAgent(t, nil, ownedByNodeA())
	for _, rp := range peers {
		api.putPeer(t, rp)
	}
	follow(t, a)
	return a, api
}

// ofNode returns an outcome for the i-th of three nodes.
func ofNode(i int, refused ...mesh.Refusal) *externalOutcome {
	nodes := []mesh.Node{meshNode(0, noise.PublicKey{1}), meshNode(1, noise.PublicKey{2}), meshNode(2, noise.PublicKey{3})}
	return &externalOutcome{refused, nodes, nodes[i]}
}

func TestOldestNodeWritesStatusOfPeers(t *testing.T) {
	a, api := newPublishingAgent(t, laptop())
	a.publishExternal(t.Context(), ofNode(0))
	c := api.acceptedIn(t, "laptop")
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonAccepted || c.Message != "a peer of all nodes in mode mesh" || c.ObservedGeneration != 1 {
		t.Errorf("got %+v", c)
	}
	before := api.external.size()
	a.publishExternal(t.Context(), ofNode(0))
	if n := api.external.size(); n != before || len(api.events) > 0 {
		t.Errorf("%d writes without a change, events %+v", n-before, api.events)
	}
}

// TestNextNodeWritesStatusWhenOldestDoesNot lets the time pass by changing when the difference was seen.
func TestNextNodeWritesStatusWhenOldestDoesNot(t *testing.T) {
	a, api := newPublishingAgent(t, laptop())
	a.publishExternal(t.Context(), ofNode(2))
	if c := api.acceptedIn(t, "laptop"); c.Type != "" {
		t.Fatalf("written at once: %+v", c)
	}
	since := a.external.differsSince["laptop"]
	a.external.differsSince["laptop"] = since.Add(-writerTimeout)
	a.publishExternal(t.Context(), ofNode(2))
	if c := api.acceptedIn(t, "laptop"); c.Type != "" {
		t.Fatalf("written before the second node's turn was over: %+v", c)
	}
	a.external.differsSince["laptop"] = since.Add(-2 * writerTimeout)
	a.publishExternal(t.Context(), ofNode(2))
	if c := api.acceptedIn(t, "laptop"); c.Type != v1alpha1.ConditionAccepted {
		t.Error("never written")
	}
}

func TestRefusalsAreEvents(t *testing.T) {
	a, api := newPublishingAgent(t, laptop())
	for _, step := range []struct {
		what    string
		refused []mesh.Refusal
		reason  string // of the condition
		event   string
	}{
		{"a conflict", []mesh.Refusal{{Peer: "laptop", Reason: "its key is taken"}}, v1alpha1.ReasonConflict, "Warning Conflict its key is taken"},
		{"the same", []mesh.Refusal{{Peer: "laptop", Reason: "its key is taken"}}, v1alpha1.ReasonConflict, ""},
		{"invalid", []mesh.Refusal{{Peer: "laptop", Reason: "no key", Invalid: true}}, v1alpha1.ReasonInvalid, "Warning Invalid no key"},
		{"accepted", nil, v1alpha1.ReasonAccepted, "Normal Accepted a peer of all nodes in mode mesh"},
	} {
		before := len(api.events)
		clear(a.external.written) // as if minWriteInterval were over, and the informer had the condition
		have := api.acceptedIn(t, "laptop")
		expect.Eventually(t, "the informer has the condition", func() bool {
			rp := a.cluster.external.objects()[0]
			return have.Type == "" || len(rp.Status.Conditions) == 1 && rp.Status.Conditions[0].Reason == have.Reason
		})
		a.publishExternal(t.Context(), ofNode(0, step.refused...))
		got := ""
		for _, e := range api.events[before:] {
			got += e.Type + " " + e.Reason + " " + e.Note
			if e.Regarding["kind"] != v1alpha1.PeerKind || e.Regarding["name"] != "laptop" || e.Regarding["uid"] != "laptop" {
				t.Errorf("%s: %+v", step.what, e)
			}
		}
		if c := api.acceptedIn(t, "laptop"); got != step.event || c.Reason != step.reason {
			t.Errorf("%s: got Event %q, want %q, condition %+v", step.what, got, step.event, c)
		}
	}
}

// TestChangingConditionIsWrittenRarely: a node that claims a prefix again and again must not make an agent write each time.
func TestChangingConditionIsWrittenRarely(t *testing.T) {
	a, api := newPublishingAgent(t, laptop())
	taken := mesh.Refusal{Peer: "laptop", Reason: "its key is taken"}
	before := api.external.size()
	for range 3 {
		a.publishExternal(t.Context(), ofNode(0, taken))
		a.publishExternal(t.Context(), ofNode(0))
	}
	if n := api.external.size() - before; n != 1 || len(api.events) != 1 {
		t.Errorf("%d writes and %d Events, want one of each", n, len(api.events))
	}
	w := a.external.written["laptop"]
	w.at = w.at.Add(-minWriteInterval)
	a.external.written["laptop"] = w
	a.publishExternal(t.Context(), ofNode(0))
	if c := api.acceptedIn(t, "laptop"); c.Status != metav1.ConditionTrue {
		t.Errorf("after %s: got %+v", minWriteInterval, c)
	}
}

func TestManyRopewalkPeersAreWrittenInTurns(t *testing.T) {
	var peers []*v1alpha1.RopewalkPeer
	for i := range maxStatusWrites + 5 {
		rp := laptop()
		rp.Name = fmt.Sprintf("laptop-%02d", i)
		peers = append(peers, rp)
	}
	a, api := newPublishingAgent(t, peers...)
	before := api.external.size()
	a.publishExternal(t.Context(), ofNode(0))
	if n := api.external.size() - before; n != maxStatusWrites {
		t.Errorf("%d writes in one reconcile, want %d", n, maxStatusWrites)
	}
	a.publishExternal(t.Context(), ofNode(0))
	if n := api.external.size() - before; n != len(peers) {
		t.Errorf("%d writes in two, want %d", n, len(peers))
	}
}

// TestFailedWriteEndsWritesOfReconcile: each may take ten seconds while the API server does not answer.
func TestFailedWriteEndsWritesOfReconcile(t *testing.T) {
	var peers []*v1alpha1.RopewalkPeer
	for i := range 3 {
		rp := laptop()
		rp.Name = fmt.Sprintf("laptop-%d", i)
		peers = append(peers, rp)
	}
	a, _ := newPublishingAgent(t, peers...)
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "forbidden", http.StatusForbidden)
	}))
	t.Cleanup(s.Close)
	var err error
	if a.client, err = newClient(&rest.Config{Host: s.URL}); err != nil {
		t.Fatal(err)
	}
	a.publishExternal(t.Context(), ofNode(0))
	if n := requests.Load(); n != 1 || len(a.external.differsSince) != 3 {
		t.Errorf("%d requests, want 1; %d conditions still differ, want 3", n, len(a.external.differsSince))
	}
}

// TestAllWritersWriteSameCondition: a message from other nodes' labels, which each writer reads at another time, would alternate.
func TestAllWritersWriteSameCondition(t *testing.T) {
	rp := laptop()
	rp.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{"zone": "b", "gateway": "true"}
	a, api := newPublishingAgent(t, rp)
	a.publishExternal(t.Context(), ofNode(0))
	first := api.acceptedIn(t, "laptop")
	if first.Message != "a peer of the nodes in mode mesh with the labels gateway=true,zone=b" {
		t.Errorf("got %+v", first)
	}
	second, api2 := newPublishingAgent(t, rp)
	n, _, _ := second.cluster.self()
	n.Labels = map[string]string{"gateway": "true", "zone": "b"}
	second.publishExternal(t.Context(), ofNode(0))
	if c := api2.acceptedIn(t, "laptop"); c.Message != first.Message {
		t.Errorf("a writer that knows other labels writes %q, want %q", c.Message, first.Message)
	}
}

func TestWrittenConditionIsForgotten(t *testing.T) {
	rp := laptop()
	s := externalStatus{written: map[string]writtenCondition{"laptop": {rp.UID, metav1.Condition{Message: "written"}, time.Now()}}}
	if c := s.current(rp); c == nil || c.Message != "written" {
		t.Errorf("got %+v", c)
	}
	rp.UID = "another"
	if c := s.current(rp); c != nil {
		t.Errorf("another object: got %+v", c)
	}
	s.written["laptop"] = writtenCondition{"laptop", metav1.Condition{}, time.Now().Add(-writeEchoTimeout)}
	if rp.UID = "laptop"; s.current(rp) != nil {
		t.Error("an old write still counts")
	}
}

func TestNodesOfPeerAreDescribed(t *testing.T) {
	for _, c := range []struct {
		spec    v1alpha1.PeerSpec
		message string
	}{
		{v1alpha1.PeerSpec{}, "a peer of all nodes in mode mesh"},
		{v1alpha1.PeerSpec{NodeSelector: v1alpha1.NodeSelector{MatchLabels: map[string]v1alpha1.LabelValue{"zone": "b"}}}, "a peer of the nodes in mode mesh with the labels zone=b"},
	} {
		if message := nodesMessage(&c.spec); message != c.message {
			t.Errorf("got %q, want %q", message, c.message)
		}
	}
}
