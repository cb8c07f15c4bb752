// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// newSyncedAgent returns an agent in mesh mode on node a, which is the whole cluster, with its RopewalkNode as given.
func newSyncedAgent(t *testing.T, change func(*Config), rn *v1alpha1.RopewalkNode) (*Agent, *fakeAPI, *fakeNetwork) {
	t.Helper()
	api := newFakeAPI()
	s := httptest.NewServer(api.handler())
	t.Cleanup(s.Close)
	a, network, _ := newTestAgent(t, t.TempDir(), func(c *Config) {
		c.API = &rest.Config{Host: s.URL}
		if change != nil {
			change(c)
		}
	})
	n := &node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "node a"}}
	n.Spec.PodCIDRs, n.Status.Addresses = []string{"10.244.1.0/24"}, []nodeAddress{{Type: internalIP, Address: "192.0.2.1"}}
	rn.Name, rn.UID = "a", "agent of a"
	status, err := json.Marshal(rn.Status)
	if err != nil {
		t.Fatal(err)
	}
	api.agents.put(object{ObjectMeta: rn.ObjectMeta, Status: status})
	for _, err := range []error{a.cluster.ownNode.GetStore().Add(n), a.cluster.ownAgent.GetStore().Add(rn)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a.setMesh(t, v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextAuto})
	a.knowsNode()
	return a, api, network
}

func ownedByNodeA() *v1alpha1.RopewalkNode {
	return &v1alpha1.RopewalkNode{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "a", UID: "node a"}}}}
}

// TestEngineThatCannotServeIsReported: the status and readiness say so. An absent engine gets its file, and one that is too old keeps its own.
func TestEngineThatCannotServeIsReported(t *testing.T) {
	for _, want := range []error{engine.ErrAbsent, engine.ErrOutdated} {
		e := &fakeEngine{unusable: want}
		a, api, _ := newSyncedAgent(t, func(c *Config) { c.Engine = e }, ownedByNodeA())
		if err := a.reconcile(t.Context(), hostChanged); !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
		st, err := api.status("a")
		if err != nil || len(st.Conditions) == 0 || !strings.Contains(st.Conditions[0].Message, want.Error()) || a.stats.Ready.Load() {
			t.Errorf("%v: status %+v, %v, ready %v", want, st, err, a.stats.Ready.Load())
		}
		if saved := e.saved.PrivateKey != nil; saved != errors.Is(want, engine.ErrAbsent) {
			t.Errorf("%v: file written: %v", want, saved)
		}
	}
}

// TestNewEngineIsConfiguredAtOnce, however long there was none.
func TestNewEngineIsConfiguredAtOnce(t *testing.T) {
	a, _, _ := newSyncedAgent(t, nil, ownedByNodeA())
	for range 10 {
		a.retry(hostChanged, engine.ErrAbsent)
	}
	a.triggerEngineChanged()
	if n := a.queue.NumRequeues(hostChanged); a.queue.Len() != 1 || n != 0 {
		t.Errorf("%d triggers, after %d failures", a.queue.Len(), n)
	}
}

// TestFirstReconcileOfNewNodeWritesEvents: the RopewalkNode is not in the informer yet.
func TestFirstReconcileOfNewNodeWritesEvents(t *testing.T) {
	a, api, network := newSyncedAgent(t, nil, ownedByNodeA())
	for _, o := range a.cluster.ownAgent.GetStore().List() {
		if err := a.cluster.ownAgent.GetStore().Delete(o); err != nil {
			t.Fatal(err)
		}
	}
	api.agents = newFakeAPI().agents
	network.filterErr = errHost
	for range 2 {
		if err := a.reconcile(t.Context(), clusterChanged); err != nil {
			t.Fatal(err)
		}
	}
	if len(api.events) != 1 || api.events[0].GenerateName != "a-" || api.events[0].Regarding["uid"] != "agent of a" || api.agents.size() != 2 {
		t.Errorf("events %+v, %d writes", api.events, api.agents.size())
	}
}

// TestStrictSurvivesFailingReconcile has the reconcile fail that ends cleartext.
func TestStrictSurvivesFailingReconcile(t *testing.T) {
	a, _, network := newSyncedAgent(t, nil, ownedByNodeA())
	a.setMesh(t, v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextNever, PodCIDRs: []v1alpha1.CIDR{"10.244.0.0/16"}})
	network.setInterfaceErr = errHost
	if err := a.reconcile(t.Context(), clusterChanged); err == nil || network.routing.Cleartext {
		t.Fatal(err, network.routing)
	}
	saved, err := loadPersistedState(a.cfg.KeyDir)
	if err != nil || saved.Tunnel == nil || saved.Tunnel.StrictSince.IsZero() || saved.Node != "node a" {
		t.Errorf("saved %+v, %v", saved.Tunnel, err)
	}
}

// TestReplacedRopewalkNodeIsAdopted has a tool replace the object by a manifest, which removes the owner.
func TestReplacedRopewalkNodeIsAdopted(t *testing.T) {
	a, api, _ := newSyncedAgent(t, nil, &v1alpha1.RopewalkNode{})
	err := a.reconcile(t.Context(), clusterChanged)
	if o, _ := api.agents.get("a"); err != nil || len(o.OwnerReferences) != 1 {
		t.Errorf("%v, owners %v", err, o.OwnerReferences)
	}
}

// TestStatusWithoutOwnerIsNotTrusted: a backup that is restored has the status of an earlier node.
func TestStatusWithoutOwnerIsNotTrusted(t *testing.T) {
	since := metav1.Unix(1e9, 0)
	a, api, _ := newSyncedAgent(t, nil, &v1alpha1.RopewalkNode{Status: v1alpha1.NodeStatus{StrictSince: &since}})
	for range 2 { // the informer may lag
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
		if st, err := api.status("a"); err != nil || st.StrictSince != nil || !a.runningMesh().strictSince.IsZero() {
			t.Errorf("%v: status %+v", err, st)
		}
	}
}

// recordingQueue records for when triggers are queued.
type recordingQueue struct {
	workqueue.TypedRateLimitingInterface[trigger]
	delays []time.Duration
}

func (q *recordingQueue) AddAfter(t trigger, after time.Duration) {
	q.delays = append(q.delays, after)
	q.TypedRateLimitingInterface.AddAfter(t, after)
}
