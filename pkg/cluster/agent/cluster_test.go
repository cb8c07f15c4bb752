// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// patience bounds each wait. It allows for an emulated and overloaded machine.
const patience = time.Minute

func TestClusterFollowsAgentStatus(t *testing.T) {
	api := newFakeAPI()
	if err := api.addNode("a", netip.MustParseAddr("192.0.2.1"), netip.MustParsePrefix("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(api.handler())
	t.Cleanup(s.Close)
	c, err := newClient(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan struct{}, 1)
	k, err := newCluster(c, "a", time.Millisecond, slog.New(slog.DiscardHandler), func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	k.start(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), k.synced) {
		t.Fatal("the informers did not sync")
	}
	until := func(what string, right func(*v1alpha1.RopewalkNode, *v1alpha1.RopewalkAnnouncement) bool) {
		t.Helper()
		late := time.After(patience)
		for _, rn, ra := k.self(); !right(rn, ra); _, rn, ra = k.self() {
			select {
			case <-changes:
			case <-late:
				t.Fatalf("waited for %s: %+v, %+v", what, rn, ra)
			}
		}
	}

	n, rn, ra := k.self()
	if n == nil || rn != nil || ra != nil {
		t.Fatalf("got objects %v, %v and %v", n, rn, ra)
	}
	for range 2 { // creating an existing object is no error
		if _, err := c.create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	until("its RopewalkNode", func(rn *v1alpha1.RopewalkNode, _ *v1alpha1.RopewalkAnnouncement) bool {
		return rn != nil && ownedBy(rn, n)
	})
	if err := c.announce(t.Context(), n, v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread, Gathers: true}); err != nil {
		t.Fatal(err)
	}
	until("its announcement", func(_ *v1alpha1.RopewalkNode, ra *v1alpha1.RopewalkAnnouncement) bool {
		return ra != nil && ra.Spec.Gathers
	})
	if all := k.all((*intent)(nil).excludes); len(all) != 1 || all[0].Agent == nil || !all[0].Agent.Gathers {
		t.Errorf("the cluster is %+v", all)
	}
	if err := c.apply(t.Context(), "b", v1alpha1.NodeStatus{}); err == nil {
		t.Error("wrote the status of a missing node")
	}
}

// TestPlanChangesAreRateLimited: a compromised node must not keep all others busy.
func TestPlanChangesAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		k := &cluster{trigger: func() { calls.Add(1) }}
		n := parseNode(t, aNode)
		var w agentState
		for i, step := range []struct {
			pass   time.Duration
			port   v1alpha1.Port
			gather bool
			want   uint16
		}{
			{0, 0, false, 0},
			{0, 61000, true, 61000}, // the first one
			{0, 61000, false, 61000},
			{time.Second, 61001, false, 61000},
			{time.Second, 61002, true, 61000},       // other fields change at once
			{57 * time.Second, 61003, false, 61000}, // one timer is enough for all of these
			{2 * time.Second, 61003, false, 61003},  // a minute after the first
			{time.Second, 0, false, 61003},          // removing the plan is a change, too
			{time.Second, 61003, false, 61003},      // the change was undone
			{2 * time.Minute, 61004, false, 61004},
		} {
			time.Sleep(step.pass) // fake clock
			ra := &v1alpha1.RopewalkAnnouncement{Spec: v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread, Gathers: step.gather}}
			ra.OwnerReferences = []metav1.OwnerReference{ownerReference(n)}
			if step.port != 0 {
				ra.Spec.Plans = []v1alpha1.Plan{{IPFamily: v1alpha1.IPv4, Ports: []v1alpha1.Port{step.port}}}
			}
			before := w
			m, now := before.update(n, ra)
			k.triggerAfter(now.limitPlanChanges(before, &m))
			w = now
			got := uint16(0)
			if len(m.Agent.Plans.V4) > 0 {
				got = m.Agent.Plans.V4[0]
			}
			if got != step.want || m.Agent.Gathers != step.gather {
				t.Errorf("step %d: port %d, gathers %t", i, got, m.Agent.Gathers)
			}
		}
		synctest.Wait()
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls for two that waited", n)
		}
	})
}

// TestTrimmedObjectsShareStrings: with 5,000 nodes, the kind of each object takes a third of a megabyte.
func TestTrimmedObjectsShareStrings(t *testing.T) {
	text := `{"apiVersion":"ropewalk.io/v1alpha1","kind":"RopewalkNode","metadata":{"name":"node-1","ownerReferences":[
		{"apiVersion":"v1","kind":"Node","name":"node-1","uid":"u"},{"apiVersion":"v1","kind":"Node","name":"node-2","uid":"v"}]}}`
	rn := &v1alpha1.RopewalkNode{}
	if err := json.Unmarshal([]byte(text), rn); err != nil {
		t.Fatal(err)
	}
	for range 2 { // an object may be trimmed twice
		if _, err := trimObject(rn); err != nil {
			t.Fatal(err)
		}
	}
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "u"}, {APIVersion: "v1", Kind: "Node", Name: "node-2", UID: "v"}}
	if !reflect.DeepEqual(rn.OwnerReferences, want) || rn.TypeMeta != (metav1.TypeMeta{}) {
		t.Errorf("got %+v, %+v", rn.TypeMeta, rn.OwnerReferences)
	}
	if unsafe.StringData(rn.OwnerReferences[0].Name) != unsafe.StringData(rn.Name) {
		t.Error("the owner's name is another string than the object's")
	}
}
