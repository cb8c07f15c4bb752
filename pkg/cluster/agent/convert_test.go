// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func parseNode(t testing.TB, text string) *node {
	t.Helper()
	var n node
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

const aNode = `{"metadata":{"name":"n1","uid":"u1"},
	"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24","2001:db8:1::/64"],"taints":[{"key":"x"}]},
	"status":{"addresses":[{"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"192.0.2.1"},
	{"type":"ExternalIP","address":"198.51.100.1"},{"type":"InternalIP","address":"2001:db8::1"}]}}`

func agentOf(uid string) *v1alpha1.RopewalkNode {
	return &v1alpha1.RopewalkNode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}}},
		Spec:       v1alpha1.NodeSpec{Endpoint: "198.51.100.1", Port: 4502},
		Status: v1alpha1.NodeStatus{
			Mode: v1alpha1.ModeMesh, PublicKey: v1alpha1.PublicKey(noise.PublicKey{7}.Base64()), NextPublicKey: "nonsense", Gathers: true,
			Endpoints:   []v1alpha1.Endpoint{"192.0.2.1:51820", "example.org:1", "[2001:db8::1]:51820"},
			SpreadPorts: &v1alpha1.Ports{First: 61000, Last: 61999},
			Plans:       []v1alpha1.Plan{{IPFamily: v1alpha1.IPv6, Ports: []v1alpha1.Port{61003, -1, 1 << 20}}, {IPFamily: "IPv5"}},
		},
	}
}

func TestConversionDropsUntrustedFields(t *testing.T) {
	n := parseNode(t, aNode)
	want := mesh.Node{
		Name: "n1", Endpoint: netip.MustParseAddr("198.51.100.1"), Port: 4502,
		Addrs:    []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("2001:db8:1::/64")},
		Agent: &mesh.Agent{
			Mode: mesh.ModeMesh, Key: noise.PublicKey{7}, Gathers: true, Ports: spread.DefaultPorts,
			Plans:     mesh.Plans{V6: []uint16{61003, 0, 65535}}, // pkg/cluster/mesh accepts a plan entirely or not at all
			Endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("[2001:db8::1]:51820")},
		},
	}
	opts := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})}
	if diff := cmp.Diff(want, toMesh(n, agentOf("u1")), opts); diff != "" {
		t.Error("-want +got\n" + diff)
	}
	want.Endpoint, want.Port, want.Agent = netip.Addr{}, 0, nil
	n.UID = "u2"
	if diff := cmp.Diff(want, toMesh(n, agentOf("u1")), opts); diff != "" {
		t.Error("RopewalkNode of an earlier node of that name: -want +got\n" + diff)
	}
}

func TestHeartbeatsAreIrrelevantUpdates(t *testing.T) {
	a, b := parseNode(t, aNode), parseNode(t, aNode)
	b.ResourceVersion = "2"
	if isRelevantUpdate(a, b, "") {
		t.Error("an update without changes is relevant")
	}
	for what, text := range map[string]string{
		"an address": strings.ReplaceAll(aNode, "192.0.2.1", "192.0.2.2"), "its pods": strings.ReplaceAll(aNode, "10.244.1.0", "10.244.2.0"),
		"another node of that name": strings.ReplaceAll(aNode, "u1", "u2"),
	} {
		if !isRelevantUpdate(a, parseNode(t, text), "") {
			t.Error("a change of " + what + " is not relevant")
		}
	}
	before, after := agentOf("u1"), agentOf("u1")
	after.Status.Peers, after.Status.SpreadsTo, after.Status.AgentVersion = 1000, 1000, "2"
	if isRelevantUpdate(before, after, "other") {
		t.Error("another node's peer count is relevant: each joining node would trigger all others twice")
	}
	if !isRelevantUpdate(before, after, before.Name) {
		t.Error("a change of the own RopewalkNode is not relevant")
	}
	planned := agentOf("u1")
	planned.Status.Plans = []v1alpha1.Plan{{IPFamily: v1alpha1.IPv4, Ports: []v1alpha1.Port{61003, 61001}}}
	if !isRelevantUpdate(before, planned, "other") {
		t.Error("a changed port plan is not relevant")
	}
	after.Status.NextPublicKey = v1alpha1.PublicKey(noise.PublicKey{8}.Base64())
	if !isRelevantUpdate(before, after, "other") {
		t.Error("a next key is not relevant (cilium #25492)")
	}
}

func TestMissingRopewalkNodeKeepsLastState(t *testing.T) {
	n := parseNode(t, aNode)
	original := agentOf("u1")
	original.UID, original.Generation = "r1", 2
	recreated := agentOf("u1") // by the agent, without a status yet
	recreated.UID, recreated.Generation, recreated.Spec, recreated.Status = "r2", 1, v1alpha1.NodeSpec{}, v1alpha1.NodeStatus{}
	published := agentOf("u1")
	published.UID, published.Generation, published.Spec, published.Status.Mode = "r2", 1, v1alpha1.NodeSpec{}, v1alpha1.ModeSpread
	emptied := agentOf("u1")
	emptied.UID, emptied.Status = "r1", v1alpha1.NodeStatus{}
	foreign := agentOf("u1")
	foreign.OwnerReferences = nil
	other := parseNode(t, strings.ReplaceAll(aNode, "u1", "u2"))
	for _, c := range []struct {
		name string
		n    *node
		rn   *v1alpha1.RopewalkNode
		mode mesh.Mode // "": no agent
	}{
		{"RopewalkNode deleted", n, nil, mesh.ModeMesh},
		{"created again, without a status", n, recreated, mesh.ModeMesh},
		{"created again, with a status", n, published, mesh.ModeSpread},
		{"status emptied: no agent", n, emptied, ""},
		{"no owner", n, foreign, mesh.ModeMesh},
		{"another node of that name", other, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, w := agentState{}.update(n, original)
			for range 2 { // twice, with the same result
				var m mesh.Node
				m, w = w.update(c.n, c.rn)
				mode := mesh.Mode("")
				if m.Agent != nil {
					mode = m.Agent.Mode
				}
				if mode != c.mode {
					t.Errorf("got mode %q, want %q", mode, c.mode)
				}
				if kept := m.Endpoint.IsValid(); kept != (c.rn != nil && c.rn != foreign && c.rn.Spec.Endpoint != "") {
					t.Errorf("endpoint %s: an empty spec is a spec", m.Endpoint)
				}
			}
		})
	}
}

func TestDeepCopySharesNothing(t *testing.T) {
	l := &nodeList{Items: []node{*parseNode(t, aNode)}}
	c := l.DeepCopyObject().(*nodeList)
	c.Items[0].Spec.PodCIDRs[0], c.Items[0].Status.Addresses[0].Address = "changed", "changed"
	if diff := cmp.Diff([]node{*parseNode(t, aNode)}, l.Items); diff != "" {
		t.Error(diff)
	}
}

func FuzzHostileStatus(f *testing.F) {
	f.Add("192.0.2.1:51820", "key", int32(61000), int32(61999), "198.51.100.1", int32(61000), int32(61001))
	f.Add("[::ffff:192.0.2.1%eth0]:0", strings.Repeat("A", 44), int32(-1), int32(1<<30), "fe80::1%x", int32(51820), int32(-1))
	f.Fuzz(func(t *testing.T, endpoint, key string, first, last int32, at string, one, two int32) {
		rn := agentOf("u1")
		rn.Spec.Endpoint = at
		rn.Status.Endpoints = []v1alpha1.Endpoint{v1alpha1.Endpoint(endpoint)}
		rn.Status.PublicKey, rn.Status.SpreadPorts = v1alpha1.PublicKey(key), &v1alpha1.Ports{First: first, Last: last}
		rn.Status.Plans = []v1alpha1.Plan{{IPFamily: v1alpha1.IPv4, Ports: []v1alpha1.Port{v1alpha1.Port(one), v1alpha1.Port(two)}}}
		n := toMesh(parseNode(t, aNode), rn)
		own := mesh.Node{Name: "own", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}
		plan, err := mesh.Tunnel("own", []mesh.Node{own, n}, mesh.TunnelConfig{})
		if err != nil {
			t.Fatal(err)
		}
		rn.Status.Mode = v1alpha1.ModeSpread
		ok := mesh.Node{
			Name: "ok", Created: time.Unix(1<<40, 0), Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.5")},
			Agent: &mesh.Agent{Mode: mesh.ModeSpread, Gathers: true, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.5:51820")}},
		}
		peers := mesh.Spread("own", []mesh.Node{own, toMesh(parseNode(t, aNode), rn), ok}, true).Peers
		if n.Endpoint != ok.Addrs[0] && !slices.ContainsFunc(peers, func(p mesh.SpreadPeer) bool { return p.Node == "ok" }) {
			t.Error("a valid node is no longer spread to")
		}
		seen := map[netip.Addr]bool{}
		for _, p := range peers {
			if plan := p.Plans.V4; len(plan) > 0 && (len(plan) != 2 || plan[0] == plan[1] || !spread.DefaultPorts.Contains(min(plan[0], plan[1])) || !spread.DefaultPorts.Contains(max(plan[0], plan[1]))) {
				t.Errorf("accepted an invalid plan: %v", plan)
			}
			for _, e := range p.Endpoints {
				if seen[e.Addr()] || p.Gather.Contains(e.Port()) || p.Gather.Len() == 0 || !e.Addr().IsGlobalUnicast() {
					t.Errorf("got invalid endpoint %s of peer %+v", e, p)
				}
				seen[e.Addr()] = true
			}
		}
		for _, p := range plan.Peers {
			if !p.Endpoint.IsValid() {
				continue
			}
			if a := p.Endpoint.Addr(); a != n.Endpoint.Unmap() && a != netip.MustParseAddr("192.0.2.1") {
				t.Errorf("got a peer with endpoint %s, which is not an address of its node", p.Endpoint)
			}
		}
	})
}
