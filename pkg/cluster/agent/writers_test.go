// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// foreignWrite has another program announce a key for node a, as the agent's informer has it.
func foreignWrite(t *testing.T, a *Agent, version int) {
	t.Helper()
	ra := &v1alpha1.RopewalkAnnouncement{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "announcement of a", ResourceVersion: strconv.Itoa(version)}}
	ra.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "a", UID: "node a"}}
	ra.Spec = v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Writer: "thief", PublicKey: "thief's key", Endpoints: []v1alpha1.Endpoint{"192.0.2.66:51820"}}
	expect.NoError(t, a.cluster.agents.GetStore().Add(ra))
}

// TestSecondWriterIsNamedAndDamped has two programs write one announcement in turn.
func TestSecondWriterIsNamedAndDamped(t *testing.T) {
	var log bytes.Buffer
	a, api, _ := newSyncedAgent(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }, ownedByNodeA())
	reconcile := func() {
		t.Helper()
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	}
	reconcile()
	for i := range 10 {
		foreignWrite(t, a, 100+i)
		reconcile()
	}
	if writes := api.announcements.size(); writes != 4 { // the first one, two answers, and one that is free
		t.Errorf("%d writes of the announcement", writes)
	}
	st, err := api.status("a")
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionSoleWriter)
	if err != nil || c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, `"thief"`) || !strings.Contains(c.Message, "thief's key at [192.0.2.66:51820]") {
		t.Errorf("%v: condition %+v", err, c)
	}
	named := 0
	for _, e := range api.events {
		if e.Type == "Warning" && e.Reason == "TwoWriters" && strings.Contains(e.Note, "thief") {
			named++
		}
	}
	if named != 1 || a.stats.ForeignWrites.Load() != 10 || strings.Count(log.String(), "writer=thief") != 1 {
		t.Errorf("%d Events, %d foreign writes counted, log\n%s", named, a.stats.ForeignWrites.Load(), log.String())
	}
}

// TestRestartWritesNoAnnouncement: all other agents receive each write.
func TestRestartWritesNoAnnouncement(t *testing.T) {
	a, api, _ := newSyncedAgent(t, nil, ownedByNodeA())
	expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	o, _ := api.announcements.get("a")
	ra := &v1alpha1.RopewalkAnnouncement{ObjectMeta: o.ObjectMeta}
	expect.NoError(t, json.Unmarshal(o.Spec, &ra.Spec))
	expect.NoError(t, a.cluster.agents.GetStore().Add(ra))
	a.publisher = publisher{instance: "the next agent"}
	expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	if n := api.announcements.size(); n != 1 {
		t.Errorf("%d writes", n)
	}
	ra = ra.DeepCopy()
	ra.OwnerReferences = nil // as a tool does that replaces the object by a manifest
	expect.NoError(t, a.cluster.agents.GetStore().Update(ra))
	expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	if o, _ := api.announcements.get("a"); api.announcements.size() != 2 || len(o.OwnerReferences) != 1 {
		t.Error("an announcement without an owner stays: other agents ignore it")
	}
}

// TestReplacedNodeAnnouncesNoOlderFacts: the announcement is that of an earlier machine until it is garbage-collected.
func TestReplacedNodeAnnouncesNoOlderFacts(t *testing.T) {
	a, api, _ := newSyncedAgent(t, nil, ownedByNodeA())
	ra := &v1alpha1.RopewalkAnnouncement{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "earlier announcement"}}
	ra.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "a", UID: "earlier node"}}
	ra.Spec = v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, PublicKey: "earlier key", Endpoints: []v1alpha1.Endpoint{"192.0.2.66:51820"}}
	expect.NoError(t, a.cluster.agents.GetStore().Add(ra))
	n, _, _ := a.cluster.self()
	expect.NoError(t, a.publishAnnouncement(t.Context(), n, &result{}, engine.ErrAbsent))
	if s, err := api.announced("a"); err != nil || api.announcements.size() != 0 {
		t.Errorf("announced %+v, %v", s, err)
	}
}

// TestConditionsReachOwnAgentAlone: after a partition of n nodes, n conditions must not be sent n times.
func TestConditionsReachOwnAgentAlone(t *testing.T) {
	l := newReaderLab(t, time.Hour, "a", "b")
	l.claim("b", 2)
	l.start()
	l.until("the other node", func(all map[string]mesh.Node) bool { return all["b"].Agent != nil })
	for _, i := range l.k.informers() {
		for _, o := range i.GetStore().List() {
			if rn, ok := o.(*v1alpha1.RopewalkNode); ok && rn.Name != "a" {
				t.Errorf("the agent of a has the RopewalkNode %s", rn.Name)
			}
		}
	}
	for _, q := range l.api.agents.watches() {
		if q != "metadata.name=a" {
			t.Errorf("the agent watches RopewalkNodes with the selector %q", q)
		}
	}
}

// TestOutdatedCRDStopsChanges: the agent does nothing that it cannot publish, and says so in the fields that there are.
func TestOutdatedCRDStopsChanges(t *testing.T) {
	for _, field := range []string{"encryptsNodes", "plans", "writer", "strictSince"} {
		rn := ownedByNodeA()
		since := metav1.Unix(1e9, 0)
		if field != "strictSince" {
			rn.Status.StrictSince = &since
		}
		a, api, network := newSyncedAgent(t, nil, rn)
		api.undeclared.Store(&field)
		for range 2 {
			if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errOutdatedCRD) || !strings.Contains(err.Error(), field) {
				t.Fatalf("%s: got error %v", field, err)
			}
		}
		st, err := api.status("a")
		if err != nil || len(st.Conditions) != 1 || st.Conditions[0].Reason != "OutdatedCRD" || st.Conditions[0].Status != metav1.ConditionFalse || (st.StrictSince == nil) != (field == "strictSince") {
			t.Errorf("%s: status %+v, %v", field, st, err)
		}
		if network.routing != nil || api.announcements.size() != 0 || api.agents.size() != 2 || a.stats.Ready.Load() || len(api.events) != 1 {
			t.Errorf("%s: routing %+v, %d announcements, %d writes, %d Events", field, network.routing, api.announcements.size(), api.agents.size()-1, len(api.events))
		}
		api.undeclared.Store(nil)
		if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errOutdatedCRD) {
			t.Errorf("%s: got %v: all agents ask at each retry", field, err)
		}
		a.definitions.due = time.Time{}
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
		if st, err := api.status("a"); err != nil || len(st.Conditions) < 5 || st.Conditions[0].Status != metav1.ConditionTrue || network.routing == nil || api.announcements.size() != 1 {
			t.Errorf("%s: after the update of the CRDs: %+v, %v", field, st, err)
		}
	}
}

// TestDroppedFieldOfMeshStopsChanges: the API server drops a field that the CRD lacks, such as a policy, and the agent reads none.
func TestDroppedFieldOfMeshStopsChanges(t *testing.T) {
	for _, c := range []struct{ kind, path, name string }{
		{"RopewalkMesh", "", ""},
		{"RopewalkMesh", "spec.postQuantum", "postQuantum"},
		{"RopewalkMesh", "spec.nodeEncryption.clearNodes.matchLabels", "matchLabels"},
		{"RopewalkMesh", "spec.pools.mtu", "mtu"},
		{"RopewalkPeer", "", ""},
		{"RopewalkPeer", "spec.postQuantum", "postQuantum"},
	} {
		a, api, network := newSyncedAgent(t, nil, ownedByNodeA())
		api.published.Store(schemaWithout(t, c.kind, c.name))
		err := a.reconcile(t.Context(), clusterChanged)
		if outdated := errors.Is(err, errOutdatedCRD); outdated != (c.path != "") || outdated != (network.routing == nil) || outdated && !strings.Contains(err.Error(), c.path+",") {
			t.Errorf("%q: got %v, routing %+v", c.path, err, network.routing)
		}
	}
}

// schemaWithout returns the OpenAPI document of a kind whose CRD lacks a field; "": none.
func schemaWithout(t *testing.T, kind, field string) *[]byte {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/crd/ropewalk.io_" + map[string]string{"RopewalkMesh": "ropewalkmeshes", "RopewalkPeer": "ropewalkpeers"}[kind] + ".yaml")
	expect.NoError(t, err)
	if field != "" {
		text = bytes.ReplaceAll(text, []byte(field+":\n"), []byte("older"+field+":\n"))
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema map[string]json.RawMessage
			}
		}
	}
	expect.NoError(t, yaml.Unmarshal(text, &crd))
	published, err := json.Marshal(map[string]any{"components": map[string]any{"schemas": map[string]any{"io.ropewalk.v1alpha1." + kind: crd.Spec.Versions[0].Schema["openAPIV3Schema"]}}})
	expect.NoError(t, err)
	return &published
}

// TestDowngradeOfIntentIsNoticed: no write of an agent shows it. The last state stays.
func TestDowngradeOfIntentIsNoticed(t *testing.T) {
	for _, kind := range []string{"RopewalkMesh", "RopewalkPeer"} {
		a, api, network := newSyncedAgent(t, nil, ownedByNodeA())
		api.published.Store(schemaWithout(t, kind, ""))
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
		api.published.Store(schemaWithout(t, kind, "postQuantum"))
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged)) // not each one asks
		a.definitions.due = a.definitions.due.Add(-2 * checkPeriod)
		network.routing = nil
		if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errOutdatedCRD) || network.routing == nil {
			t.Errorf("%s: got %v, routing %+v, want the last state", kind, err, network.routing)
		}
		api.published.Store(schemaWithout(t, kind, ""))
		a.definitions.due = a.definitions.due.Add(-2 * checkPeriod)
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	}
}

// TestOutdatedCRDKeepsStatusOfOlderAgent: agents of its version read there the key of the node.
func TestOutdatedCRDKeepsStatusOfOlderAgent(t *testing.T) {
	rn := ownedByNodeA()
	rn.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}, {Type: "Encrypted", Status: metav1.ConditionTrue}}
	a, api, _ := newSyncedAgent(t, nil, rn)
	o, _ := api.agents.get("a")
	o.Status = json.RawMessage(`{"publicKey":"older key",` + string(o.Status[1:]))
	api.agents.put(o)
	field := "encryptsNodes"
	api.undeclared.Store(&field)
	if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errOutdatedCRD) {
		t.Fatalf("got error %v", err)
	}
	o, _ = api.agents.get("a")
	st, err := api.status("a")
	if err != nil || !strings.Contains(string(o.Status), "older key") || len(st.Conditions) != 2 || !meta.IsStatusConditionFalse(st.Conditions, "Ready") {
		t.Errorf("%v: status %s", err, o.Status)
	}
	if exported := *a.stats.conditions.Load(); len(exported) != 1 || exported[0].Status != metav1.ConditionFalse {
		t.Errorf("exported: %+v", exported)
	}
}

// TestCRDThatIsDowngradedStopsChanges: the agent learns of it when it writes.
func TestCRDThatIsDowngradedStopsChanges(t *testing.T) {
	a, api, network := newSyncedAgent(t, nil, ownedByNodeA())
	expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	field := "podCIDRs"
	api.undeclared.Store(&field)
	a.announced = written[v1alpha1.AnnouncementSpec]{} // the informer has none: it is written again
	if err := a.reconcile(t.Context(), clusterChanged); err == nil {
		t.Error("an announcement that was refused is no error")
	}
	network.routing = nil
	if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errOutdatedCRD) || network.routing == nil {
		t.Errorf("got %v, routing %+v, want the last state", err, network.routing)
	}
}

// TestRefusedAnnouncementIsReported: the node's tunnel is up, and no other node knows its key.
func TestRefusedAnnouncementIsReported(t *testing.T) {
	for code, ready := range map[int]bool{
		http.StatusForbidden: false, http.StatusUnprocessableEntity: false, http.StatusNotFound: false, http.StatusGatewayTimeout: true,
	} {
		a, api, _ := newSyncedAgent(t, nil, ownedByNodeA())
		a.definitions.due = time.Now().Add(checkPeriod)
		api.refusal.Store(int32(code))
		if err := a.reconcile(t.Context(), clusterChanged); err == nil {
			t.Errorf("%d: no error", code)
		}
		st, err := api.status("a")
		c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
		if err != nil || c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "RopewalkAnnouncement") {
			t.Errorf("%d: %v, condition %+v", code, err, c)
		}
		if got := a.stats.Ready.Load(); got != ready || a.definitions.due.IsZero() != (code == http.StatusNotFound) {
			t.Errorf("%d: ready %v, next check of definitions %v", code, got, a.definitions.due)
		}
	}
}

// TestGuardOfExcludedNodeIsNotExported: it has none, and no alert about it ever ends.
func TestGuardOfExcludedNodeIsNotExported(t *testing.T) {
	a, _, _ := newSyncedAgent(t, nil, ownedByNodeA())
	for _, exclude := range []v1alpha1.Exclude{{}, {NodeNames: []string{"a"}}, {}} {
		a.setMesh(t, v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextAuto, Exclude: exclude})
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
		families, err := newRegistry(&a.stats).Gather()
		expect.NoError(t, err)
		exported := false
		for _, f := range families {
			exported = exported || f.GetName() == "ropewalk_agent_guarded"
		}
		if exported != (exclude.NodeNames == nil) {
			t.Errorf("exclude %+v: exported %v", exclude, exported)
		}
	}
}

// TestFullStatusHasAllFields is about fullStatus.
func TestFullStatusHasAllFields(t *testing.T) {
	for field, value := range reflect.ValueOf(fullStatus()).Fields() {
		if value.IsZero() {
			t.Errorf("%s is not in it", field.Name)
		}
	}
}

func TestMissingAdmissionPolicyIsReported(t *testing.T) {
	a, api, _ := newSyncedAgent(t, nil, ownedByNodeA())
	condition := func() metav1.ConditionStatus {
		t.Helper()
		a.policy.due = a.policy.due.Add(-2 * checkPeriod)
		expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
		st, err := api.status("a")
		expect.NoError(t, err)
		return meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAdmissionPolicy).Status
	}
	if got := condition(); got != metav1.ConditionTrue || len(api.events) != 0 {
		t.Errorf("with a policy: %s, Events %+v", got, api.events)
	}
	api.unprotected.Store(true)
	if got := condition(); got != metav1.ConditionFalse || len(api.events) != 1 || api.events[0].Reason != "NotEnforced" {
		t.Errorf("without a policy: %s, Events %+v", got, api.events)
	}
	if _, exists := api.announcements.get(someoneElse); exists {
		t.Error("the check wrote an object")
	}
	api.unprotected.Store(false)
	api.refusal.Store(http.StatusGatewayTimeout)
	a.policy.due = time.Time{}
	if got := a.policyCondition(t.Context(), ownedByNodeA()); got.Status != metav1.ConditionFalse {
		t.Errorf("after a timeout: got %+v", got)
	}
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "ropewalkannouncements"}, someoneElse, errors.New("ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"))
	for _, c := range []struct {
		foreign, own error
		want         metav1.ConditionStatus
	}{
		{denied, nil, metav1.ConditionTrue},
		{denied, denied, metav1.ConditionUnknown}, // a webhook that refuses everything
		{denied, apierrors.NewTimeoutError("later", 1), metav1.ConditionUnknown},
		{&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: `admission webhook "x" denied the request: no`}}, nil, metav1.ConditionTrue},
		{apierrors.NewForbidden(schema.GroupResource{Resource: "ropewalkannouncements"}, someoneElse, errors.New("user cannot patch")), nil, metav1.ConditionUnknown},
		{errors.New("access denied by a proxy"), nil, metav1.ConditionUnknown},
	} {
		if got := policyConditionOf(c.foreign, c.own); got.Status != c.want {
			t.Errorf("%v, %v: got %+v", c.foreign, c.own, got)
		}
	}
}
