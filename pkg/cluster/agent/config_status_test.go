// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// configStatusIn returns the status of a RopewalkConfig in the API.
func (a *fakeAPI) configStatusIn(t *testing.T, name string) (st v1alpha1.ConfigStatus) {
	t.Helper()
	if o, _ := a.configs.get(name); o.Status != nil {
		if err := json.Unmarshal(o.Status, &st); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// reports stores RopewalkNodes that follow configs.
func (p *pooledAgent) reports(followed ...v1alpha1.FollowedConfig) {
	for i := range followed {
		rn := &v1alpha1.RopewalkNode{Status: v1alpha1.NodeStatus{Config: &followed[i]}}
		rn.Name = "n" + string(rune('0'+i))
		if err := p.cluster.agents.GetStore().Add(rn); err != nil {
			p.t.Fatal(err)
		}
	}
}

func TestOldestNodeCountsFollowers(t *testing.T) {
	p, api := newPooledAgent(t, poolConfig("a", nil), poolConfig("b", nil))
	applied, pending, refused := v1alpha1.ConfigApplied, v1alpha1.ConfigPending, v1alpha1.ConfigRefused
	p.reports(
		v1alpha1.FollowedConfig{Name: "a", Generation: 1, State: applied}, v1alpha1.FollowedConfig{Name: "a", Generation: 0, State: applied},
		v1alpha1.FollowedConfig{Name: "a", Generation: 1, State: pending}, v1alpha1.FollowedConfig{Name: "a", Generation: 1, State: refused},
		v1alpha1.FollowedConfig{Name: "a", Generation: 1, State: applied, ConflictsWith: []string{"b"}},
	)
	older, self := meshNode(0, noise.PublicKey{1}), meshNode(1, noise.PublicKey{2})
	older.Agent.Mode = mesh.ModeSpread // agents of both modes write
	p.publishConfigs(t.Context(), self, []mesh.Node{older, self})
	if st := api.configStatusIn(t, "a"); st.ObservedGeneration != 0 {
		t.Fatalf("the second node wrote at once: %+v", st)
	}
	before := api.configs.size()
	for range 2 {
		p.publishConfigs(t.Context(), older, []mesh.Node{older, self})
	}
	if n := api.configs.size() - before; n != 2 {
		t.Errorf("%d writes, want one for each", n)
	}
	st := api.configStatusIn(t, "a")
	if st.FollowingNodes != 2 || st.PendingNodes != 2 || st.RefusingNodes != 1 || st.ObservedGeneration != 1 {
		t.Errorf("got %+v", st)
	}
	if c := st.Conditions; len(c) != 2 || c[0].Status != "False" || c[0].Reason != "Refused" || c[1].Status != "True" || c[1].Reason != "Conflict" {
		t.Errorf("got %+v", c)
	}
	if c := api.configStatusIn(t, "b").Conditions; len(c) != 2 || c[0].Status != "True" || c[1].Status != "True" {
		t.Errorf("the RopewalkConfig that does not apply has %+v", c)
	}
	if len(api.events) != 3 { // refused and a conflict of a, a conflict of b
		t.Errorf("events %+v", api.events)
	}
}

// TestYoungerWriterWaitsWhileOlderWrites has counts that change all the time. The older node's agent writes each time.
func TestYoungerWriterWaitsWhileOlderWrites(t *testing.T) {
	p, api := newPooledAgent(t, poolConfig("a", nil))
	older, self := meshNode(0, noise.PublicKey{1}), meshNode(1, noise.PublicKey{2})
	publish := func(version string) int {
		for name, o := range p.configs.outdated {
			o.since = o.since.Add(-time.Hour)
			p.configs.outdated[name] = o
		}
		obj, _, _ := p.cluster.configs.GetStore().GetByKey("a")
		rc := obj.(*v1alpha1.RopewalkConfig).DeepCopy()
		rc.ResourceVersion = version
		if err := p.cluster.configs.GetStore().Update(rc); err != nil {
			t.Fatal(err)
		}
		before := api.configs.size()
		p.publishConfigs(t.Context(), self, []mesh.Node{older, self})
		return api.configs.size() - before
	}
	for _, version := range []string{"another", "yet another", "a third"} {
		if n := publish(version); n != 0 {
			t.Errorf("%d writes, although the older node's agent writes", n)
		}
	}
	if n := publish("a third"); n != 1 {
		t.Errorf("%d writes, although no agent has written", n)
	}
}

func TestOneReconcileWritesFewConfigs(t *testing.T) {
	p, api := newPooledAgent(t)
	for i := range maxStatusWrites + 3 {
		rc := poolConfig(fmt.Sprint("c", i), nil)
		api.putConfig(t, rc)
		if err := p.cluster.configs.GetStore().Update(rc); err != nil {
			t.Fatal(err)
		}
	}
	self := meshNode(0, noise.PublicKey{1})
	for _, want := range []int{maxStatusWrites, 3, 0} {
		before := api.configs.size()
		p.publishConfigs(t.Context(), self, []mesh.Node{self})
		if n := api.configs.size() - before; n != want {
			t.Errorf("%d writes, want %d", n, want)
		}
	}
}
