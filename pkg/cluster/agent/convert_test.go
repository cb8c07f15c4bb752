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
	"k8s.io/apimachinery/pkg/types"

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

func announcementOf(uid types.UID) *v1alpha1.RopewalkAnnouncement {
	return &v1alpha1.RopewalkAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: uid}}},
		Spec: v1alpha1.AnnouncementSpec{
			Mode: v1alpha1.ModeMesh, PublicKey: v1alpha1.PublicKey(noise.PublicKey{7}.Base64()), NextPublicKey: "nonsense", Gathers: true,
			Endpoints:   []v1alpha1.Endpoint{"192.0.2.1:51820", "example.org:1", "[2001:db8::1]:51820"},
			SpreadPorts: &v1alpha1.Ports{First: 61000, Last: 61999},
			Plans:       []v1alpha1.Plan{{IPFamily: v1alpha1.IPv6, Ports: []v1alpha1.Port{61003, -1, 1 << 20}}, {IPFamily: "IPv5"}},
		},
	}
}

// settingsOfN1 returns the RopewalkNode of aNode.
func settingsOfN1(uid types.UID) *v1alpha1.RopewalkNode {
	rn := &v1alpha1.RopewalkNode{ObjectMeta: announcementOf(uid).ObjectMeta}
	rn.Spec = v1alpha1.NodeSpec{Endpoint: "198.51.100.1", Port: 4502}
	return rn
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
	if diff := cmp.Diff(want, toMesh(withSettings(n, settingsOfN1("u1")), announcementOf("u1")), opts); diff != "" {
		t.Error("-want +got\n" + diff)
	}
	want.Endpoint, want.Port, want.Agent = netip.Addr{}, 0, nil
	n.UID = "u2"
	if diff := cmp.Diff(want, toMesh(withSettings(n, settingsOfN1("u1")), announcementOf("u1")), opts); diff != "" {
		t.Error("objects of an earlier node of that name: -want +got\n" + diff)
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
	if !isRelevantUpdate(a, withSettings(a, settingsOfN1("u1")), "") {
		t.Error("a change of its settings is not relevant")
	}
	before, after := announcementOf("u1"), announcementOf("u1")
	after.Spec.Writer, after.Spec.PodCIDRs = "another", []v1alpha1.CIDR{"10.244.9.0/24"}
	if isRelevantUpdate(before, after, "other") {
		t.Error("what no other node reads is relevant")
	}
	if !isRelevantUpdate(before, after, before.Name) {
		t.Error("a change of the own announcement is not relevant")
	}
	after.Spec.Plans = []v1alpha1.Plan{{IPFamily: v1alpha1.IPv4, Ports: []v1alpha1.Port{61003, 61001}}}
	if !isRelevantUpdate(before, after, "other") {
		t.Error("a changed port plan is not relevant")
	}
	after.Spec.Plans, after.Spec.NextPublicKey = before.Spec.Plans, v1alpha1.PublicKey(noise.PublicKey{8}.Base64())
	if !isRelevantUpdate(before, after, "other") {
		t.Error("a next key is not relevant (cilium #25492)")
	}
}

func TestMissingAnnouncementKeepsLastState(t *testing.T) {
	n := parseNode(t, aNode)
	original, recreated, published := announcementOf("u1"), announcementOf("u1"), announcementOf("u1")
	original.UID, recreated.UID, published.UID = "r1", "r2", "r2"
	recreated.Spec, published.Spec.Mode = v1alpha1.AnnouncementSpec{}, v1alpha1.ModeSpread
	emptied, foreign := announcementOf("u1"), announcementOf("u1")
	emptied.UID, emptied.Spec = "r1", v1alpha1.AnnouncementSpec{}
	foreign.OwnerReferences = nil
	other := parseNode(t, strings.ReplaceAll(aNode, "u1", "u2"))
	for _, c := range []struct {
		name string
		n    *node
		ra   *v1alpha1.RopewalkAnnouncement
		mode mesh.Mode // "": no agent
	}{
		{"deleted", n, nil, mesh.ModeMesh},
		{"created again, empty", n, recreated, mesh.ModeMesh},
		{"created again", n, published, mesh.ModeSpread},
		{"emptied: no agent", n, emptied, ""},
		{"no owner", n, foreign, mesh.ModeMesh},
		{"another node of that name", other, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, w := agentState{}.update(n, original)
			for range 2 { // twice, with the same result
				var m mesh.Node
				m, w = w.update(c.n, c.ra)
				mode := mesh.Mode("")
				if m.Agent != nil {
					mode = m.Agent.Mode
				}
				if mode != c.mode {
					t.Errorf("got mode %q, want %q", mode, c.mode)
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

func FuzzHostileAnnouncement(f *testing.F) {
	f.Add("192.0.2.1:51820", "key", int32(61000), int32(61999), "198.51.100.1", int32(61000), int32(61001))
	f.Add("[::ffff:192.0.2.1%eth0]:0", strings.Repeat("A", 44), int32(-1), int32(1<<30), "fe80::1%x", int32(51820), int32(-1))
	f.Fuzz(func(t *testing.T, endpoint, key string, first, last int32, at string, one, two int32) {
		rn, ra := settingsOfN1("u1"), announcementOf("u1")
		rn.Spec.Endpoint = at
		ra.Spec.Endpoints = []v1alpha1.Endpoint{v1alpha1.Endpoint(endpoint)}
		ra.Spec.PublicKey, ra.Spec.SpreadPorts = v1alpha1.PublicKey(key), &v1alpha1.Ports{First: first, Last: last}
		ra.Spec.Plans = []v1alpha1.Plan{{IPFamily: v1alpha1.IPv4, Ports: []v1alpha1.Port{v1alpha1.Port(one), v1alpha1.Port(two)}}}
		n := toMesh(withSettings(parseNode(t, aNode), rn), ra)
		own := mesh.Node{Name: "own", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}
		plan, err := mesh.Tunnel("own", []mesh.Node{own, n}, mesh.TunnelConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ra.Spec.Mode = v1alpha1.ModeSpread
		ok := mesh.Node{
			Name: "ok", Created: time.Unix(1<<40, 0), Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.5")},
			Agent: &mesh.Agent{Mode: mesh.ModeSpread, Gathers: true, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.5:51820")}},
		}
		peers := mesh.Spread("own", []mesh.Node{own, toMesh(withSettings(parseNode(t, aNode), rn), ra), ok}, true).Peers
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
