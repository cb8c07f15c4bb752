// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestGuardClassesFollowPlan has a peer, a node without a tunnel, one that has opted out and one whose prefix is refused.
func TestGuardClassesFollowPlan(t *testing.T) {
	node := func(name, addr, pods string, key byte) mesh.Node {
		n := mesh.Node{Name: name, Addrs: []netip.Addr{netip.MustParseAddr(addr)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(pods)}}
		if key != 0 {
			n.Agent = &mesh.Agent{Mode: mesh.ModeMesh, Key: noise.PublicKey{key}, Endpoints: []netip.AddrPort{netip.AddrPortFrom(n.Addrs[0], 51820)}}
		}
		return n
	}
	nodes := []mesh.Node{
		node("a", "192.0.2.1", "10.244.1.0/24", 1), node("b", "192.0.2.2", "10.244.2.0/24", 2), node("c", "192.0.2.3", "10.244.3.0/24", 0),
		node("d", "192.0.2.4", "10.244.4.0/24", 0), node("e", "192.0.2.5", "10.99.0.0/24", 5),
	}
	nodes[3].OptOut = true
	cluster := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	for _, cleartext := range []bool{false, true} {
		plan, err := mesh.Tunnel("a", nodes, mesh.TunnelConfig{Cleartext: cleartext, Pods: cluster, OwnKeys: []noise.PublicKey{{1}}})
		if err != nil {
			t.Fatal(err)
		}
		want := map[netip.Prefix]programs.GuardClass{
			cluster[0]:                             programs.GuardClassUnknown,
			netip.MustParsePrefix("10.244.1.0/24"): programs.GuardClassLocal,
			netip.MustParsePrefix("10.244.2.0/24"): programs.GuardClassRemote,
			netip.MustParsePrefix("10.244.4.0/24"): programs.GuardClassExempt,
		}
		want[netip.MustParsePrefix("10.244.3.0/24")] = programs.GuardClassRemote
		if cleartext {
			want[netip.MustParsePrefix("10.244.3.0/24")] = programs.GuardClassUnknown
		}
		got := guardClasses(&plan, cluster, nil)
		maps.DeleteFunc(got, func(p netip.Prefix, _ programs.GuardClass) bool { return p.IsSingleIP() }) // the nodes' addresses
		if !maps.Equal(got, want) {
			t.Errorf("cleartext %v: got %v, want %v", cleartext, got, want)
		}
	}
}

// TestFirstChangesNeedNewAnswers: an agent that has changed the host is not ready by sessions of before.
func TestFirstChangesNeedNewAnswers(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	e.noRoutes = true
	in := reconcileInput{self: meshNode(0, noise.PublicKey{})}
	in.nodes = []mesh.Node{in.self}
	var seen config.Status
	for i := range byte(3) {
		key := noise.PublicKey{i + 1}
		in.nodes = append(in.nodes, meshNode(i+1, key))
		seen.Peers = append(seen.Peers, config.PeerStatus{PublicKey: key, LastHandshake: time.Now().Add(time.Hour)})
	}
	m.prover.Engine = &fakeEngine{status: seen}
	if r := m.mustReconcile(t, in); r.changes == 0 {
		t.Error("the first reconcile changed nothing")
	}
	expect.Eventually(t, "all peers to be judged", func() bool {
		s, _ := m.prover.Seen()
		return s.Judged == 3
	})
	if s, _ := m.prover.Seen(); s.CutOff() == "" {
		t.Errorf("ready with %+v", s)
	}
}
