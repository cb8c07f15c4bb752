// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// byPool selects nodes with the label pool.
func byPool(name v1alpha1.LabelValue) v1alpha1.NodeSelector {
	return v1alpha1.NodeSelector{MatchLabels: map[string]v1alpha1.LabelValue{"pool": name}}
}

func TestFirstMatchingPoolApplies(t *testing.T) {
	e := &fakeEngine{}
	a, _, network := newSyncedAgent(t, func(c *Config) { c.Engine = e }, ownedByNodeA())
	a.setMesh(t, v1alpha1.MeshSpec{Pools: []v1alpha1.Pool{
		{NodeSelector: byPool("jumbo"), MTU: 8900, Port: 51900},
		{NodeSelector: byPool("quiet"), Underlay: "udp", PersistentKeepalive: 25},
		{NodeSelector: byPool("quiet"), MTU: 1300},
	}})
	for _, c := range []struct {
		pool string
		port int32 // of the RopewalkNode
		mtu  int
		want v1alpha1.Endpoint
	}{
		{"", 0, 1440, "192.0.2.1:51820"},
		{"jumbo", 0, 8900, "192.0.2.1:51900"},
		{"jumbo", 7000, 8900, "192.0.2.1:7000"},
		{"quiet", 0, 1440, "192.0.2.1:51820"},
		{"other", 0, 1440, "192.0.2.1:51820"},
	} {
		n, rn, _ := a.cluster.self()
		n.Labels, rn.Spec.Port = map[string]string{"pool": c.pool}, c.port
		r, err := a.reconcileMode(t.Context(), n, rn, clusterChanged)
		if err != nil || network.mtu != c.mtu || r.announcement.Endpoints[0] != c.want || r.status.MeshGeneration != 3 {
			t.Errorf("pool %q: mtu %d, %+v, %v", c.pool, network.mtu, r.status, err)
		}
	}
	var underlays []config.UnderlayMode
	for _, change := range e.configuredSince(1) {
		if change.Underlay != nil {
			underlays = append(underlays, *change.Underlay)
		}
	}
	if !slices.Equal(underlays, []config.UnderlayMode{config.UnderlayUDP, config.UnderlayAuto}) {
		t.Errorf("underlays %v", underlays)
	}
}

// TestExclusionEndsWithItsEntry: for an agent that runs, and for one that starts.
func TestExclusionEndsWithItsEntry(t *testing.T) {
	restricted := v1alpha1.NodeSelector{MatchLabels: map[string]v1alpha1.LabelValue{v1alpha1.RestrictedPrefix + "clear": "yes"}}
	for _, exclude := range []v1alpha1.Exclude{{NodeNames: []string{"a"}}, {NodeSelector: &restricted}} {
		a, _, network := newSyncedAgent(t, nil, ownedByNodeA())
		n, rn, _ := a.cluster.self()
		n.Labels = map[string]string{v1alpha1.RestrictedPrefix + "clear": "yes"}
		excluded := func(want bool) {
			t.Helper()
			r, err := a.reconcileMode(t.Context(), n, rn, clusterChanged)
			if err != nil || (network.routing == nil) != want || (len(r.announcement.Endpoints) == 0) != want || r.announcement.Mode != v1alpha1.ModeMesh {
				t.Fatalf("excluded %v: routing %+v, status %+v, %v", want, network.routing, r.status, err)
			}
			if all := a.cluster.all(a.intent.excludes); len(all) != 1 || all[0].OptOut != want {
				t.Errorf("excluded %v: others see %+v", want, all)
			}
		}
		excluded(false)
		a.setMesh(t, v1alpha1.MeshSpec{Exclude: exclude})
		excluded(true)
		again, _, _ := newTestAgent(t, a.cfg.KeyDir, nil)
		if expect.NoError(t, again.restorePersisted()); !again.intent.excludes(n) {
			t.Error("an agent that starts without the API forgets it")
		}
		a.setMesh(t, v1alpha1.MeshSpec{})
		excluded(false)
		again, _, _ = newTestAgent(t, a.cfg.KeyDir, nil)
		if expect.NoError(t, again.restorePersisted()); again.intent.excludes(n) {
			t.Error("an agent that starts excludes a node whose entry was deleted")
		}
	}
}

// TestLabelsOfKubeletsExcludeNoNode: a node must not exclude itself.
func TestLabelsOfKubeletsExcludeNoNode(t *testing.T) {
	own := byPool("clear")
	if _, err := parseIntent(&v1alpha1.MeshSpec{Exclude: v1alpha1.Exclude{NodeSelector: &own}}); err == nil {
		t.Error("a label that kubelets can set excludes nodes")
	}
	n := parseNode(t, aNode)
	n.Labels = map[string]string{"pool": "clear", v1alpha1.RestrictedPrefix + "a": "b"}
	if _, err := trimObject(n); err != nil || len(n.Labels) != 1 || n.Labels[v1alpha1.RestrictedPrefix+"a"] != "b" {
		t.Errorf("labels %v, %v", n.Labels, err)
	}
}

func TestInvalidIntentLeavesLastOne(t *testing.T) {
	a, _, _ := newSyncedAgent(t, nil, ownedByNodeA())
	n, rn, _ := a.cluster.self()
	pods := []v1alpha1.CIDR{"10.0.0.0/8"}
	a.setMesh(t, v1alpha1.MeshSpec{PodCIDRs: pods})
	for _, spec := range []v1alpha1.MeshSpec{
		{Cleartext: "Sometimes"},
		{Cleartext: v1alpha1.CleartextNever},
		{PodCIDRs: []v1alpha1.CIDR{"10.244.0.0"}},
		{ServiceCIDRs: []v1alpha1.CIDR{"x"}},
		{NodeEncryption: v1alpha1.NodeEncryption{Enabled: true}, PodCIDRs: pods},
		{NodeEncryption: v1alpha1.NodeEncryption{Enabled: true, NodeCIDRs: []v1alpha1.CIDR{"192.0.2.0/24"}}},
		{NodeEncryption: v1alpha1.NodeEncryption{Enabled: true, NodeCIDRs: []v1alpha1.CIDR{"192.0.2.0/24"}, ClearPorts: []v1alpha1.ClearPort{"8443"}}, PodCIDRs: pods},
		{Pools: []v1alpha1.Pool{{MTU: 1279}}},
		{Pools: []v1alpha1.Pool{{Port: 65536}}},
		{Pools: []v1alpha1.Pool{{PersistentKeepalive: -1}}},
		{Pools: []v1alpha1.Pool{{Underlay: "tcp"}}},
		{Exclude: v1alpha1.Exclude{NodeSelector: &v1alpha1.NodeSelector{}}},
		{}, // valid
	} {
		_, err := parseIntent(&spec)
		if (err == nil) != (len(spec.Pools) == 0 && spec.Cleartext == "" && spec.PodCIDRs == nil && spec.ServiceCIDRs == nil && spec.Exclude.NodeSelector == nil && !spec.NodeEncryption.Enabled) {
			t.Errorf("%+v: got %v", spec, err)
		}
	}
	if r, err := a.reconcileMode(t.Context(), n, rn, clusterChanged); err != nil || r.status.MeshGeneration != 3 {
		t.Fatal(r.status.MeshGeneration, err)
	}
	a.setMesh(t, v1alpha1.MeshSpec{Cleartext: "Sometimes"})
	r, err := a.reconcileMode(t.Context(), n, rn, clusterChanged)
	if err != nil || r.status.MeshGeneration != 3 || !strings.Contains(r.clusterNote, "generation 4 of the RopewalkMesh is ignored") || len(a.intent.pods) != 1 {
		t.Errorf("generation %d, note %q, %v", r.status.MeshGeneration, r.clusterNote, err)
	}
}

// TestDeletedMeshLeavesLastOne: for an agent that runs, and for one that starts.
func TestDeletedMeshLeavesLastOne(t *testing.T) {
	a, _, _ := newSyncedAgent(t, nil, ownedByNodeA())
	pods := []v1alpha1.CIDR{"10.0.0.0/8"}
	a.setMesh(t, v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextNever, PodCIDRs: pods})
	n, rn, _ := a.cluster.self()
	if _, err := a.reconcileMode(t.Context(), n, rn, clusterChanged); err != nil {
		t.Fatal(err)
	}
	again, _, _ := newTestAgent(t, a.cfg.KeyDir, nil)
	expect.NoError(t, again.restorePersisted())
	for _, b := range []*Agent{a, again} {
		expect.NoError(t, b.cluster.mesh.GetStore().Replace(nil, ""))
		note, err := b.readIntent(n)
		if err != nil || !strings.Contains(note, "generation 3 stays in effect") ||
			b.intent.cleartext != v1alpha1.CleartextNever || !slices.Equal(b.intent.pods, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}) {
			t.Errorf("note %q, %+v, %v", note, b.intent, err)
		}
	}
}

// TestNodeWithoutIntentHasNoTunnel is about a new node.
func TestNodeWithoutIntentHasNoTunnel(t *testing.T) {
	a, api, network := newSyncedAgent(t, nil, ownedByNodeA())
	expect.NoError(t, a.cluster.mesh.GetStore().Replace(nil, ""))
	if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errNoMesh) || network.routing != nil || a.stats.Ready.Load() {
		t.Errorf("got %v, routing %+v", err, network.routing)
	}
	if st, err := api.status("a"); err != nil || len(st.Conditions) != 3 || !strings.Contains(st.Conditions[0].Message, "no RopewalkMesh") {
		t.Errorf("status %+v, %v", st, err)
	}
}

// TestIntentIsSavedWhenRead: the reconcile that applies it may fail, and the next agent may start without the API.
func TestIntentIsSavedWhenRead(t *testing.T) {
	a, _, network := newSyncedAgent(t, nil, ownedByNodeA())
	network.linkMTUErr = errHost
	a.setMesh(t, v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextNever, PodCIDRs: []v1alpha1.CIDR{"10.0.0.0/8"}})
	if err := a.reconcile(t.Context(), clusterChanged); err == nil {
		t.Fatal("the reconcile did not fail")
	}
	saved, err := loadPersistedState(a.cfg.KeyDir)
	if err != nil || saved.Mesh == nil || saved.Mesh.Spec.Cleartext != v1alpha1.CleartextNever || saved.Node != "node a" {
		t.Errorf("saved %+v, %v", saved, err)
	}
}

func TestPostQuantumOfTheMeshIsParsed(t *testing.T) {
	for value, want := range map[v1alpha1.PostQuantum]config.PostQuantum{
		"": config.PostQuantumDefault, "Never": config.PostQuantumOff, "Auto": config.PostQuantumAuto, "Required": config.PostQuantumRequired,
	} {
		if i, err := parseIntent(&v1alpha1.MeshSpec{PostQuantum: value}); err != nil || i.postQuantum != want {
			t.Errorf("%q: got %+v, %v, want %v", value, i, err, want)
		}
	}
	if _, err := parseIntent(&v1alpha1.MeshSpec{PostQuantum: "off"}); err == nil || !strings.Contains(err.Error(), "want Auto, Never or Required") {
		t.Errorf("got %v", err)
	}
}

func FuzzHostileRopewalkMesh(f *testing.F) {
	f.Add("pool", "a", "In", int32(51820), int32(1400), "udp", "10.0.0.0/8", "Auto")
	f.Add("a=b", "\x00", "", int32(-1), int32(1<<30), "tcp", "::/200", "off")
	f.Fuzz(func(t *testing.T, key, value, operator string, port, mtu int32, underlay, cidr, quantum string) {
		s := byPool("a")
		s.MatchExpressions = []v1alpha1.NodeSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOperator(operator), Values: []v1alpha1.LabelValue{v1alpha1.LabelValue(value)}}}
		i, err := parseIntent(&v1alpha1.MeshSpec{
			PodCIDRs: []v1alpha1.CIDR{v1alpha1.CIDR(cidr)}, Exclude: v1alpha1.Exclude{NodeNames: []string{key}},
			Pools:       []v1alpha1.Pool{{NodeSelector: s, Port: port, MTU: mtu, PersistentKeepalive: port, Underlay: v1alpha1.Underlay(underlay)}},
			PostQuantum: v1alpha1.PostQuantum(quantum),
		})
		if err != nil {
			return
		}
		n := parseNode(t, aNode)
		n.Labels = map[string]string{"pool": "a", key: value}
		if got := i.settings(n); got != (mesh.Settings{}) && (int32(got.Port) != port || got.MTU != 0 && got.MTU < mesh.MinMTU || got.MTU > 65535) {
			t.Errorf("chosen: %+v", got)
		}
	})
}
