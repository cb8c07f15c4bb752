// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

var clusterPods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

// proving is a node with one peer, in a cluster whose time is fake.
type proving struct {
	*testing.T
	m       *meshReconciler
	network *fakeNetwork
	engine  *fakeEngine
	guard   *fakeGuard
	in      reconcileInput
	peer    mesh.Node
	pending atomic.Bool // the prover requested a reconcile
}

func newProving(t *testing.T, c v1alpha1.Cleartext) *proving {
	m, n, e := newTestMeshReconciler(t)
	p := &proving{T: t, network: n, engine: e, guard: m.cfg.Guard.(*fakeGuard), peer: meshNode(1, noise.PublicKey{1})}
	m.cfg.proved = func() { p.pending.Store(true) }
	p.m = newMeshReconciler(m.cfg, nil, m.apiAddrs, m.trigger)
	p.m.intent = intent{revision: meshRevision{"mesh-1", 1}, cleartext: c, pods: clusterPods}
	t.Cleanup(p.m.stop)
	own := meshNode(0, noise.PublicKey{})
	p.in = reconcileInput{self: own, nodes: []mesh.Node{own, p.peer}}
	return p
}

// run reconciles, and again each time that a proof requests it.
func (p *proving) run(d time.Duration) (r result) {
	p.Helper()
	p.pending.Store(true)
	for end := time.Now().Add(d); ; {
		if p.pending.Swap(false) {
			r = p.m.mustReconcile(p.T, p.in)
			p.in.lastStatus = r.status
			p.in.lastStatus.MeshUID, p.in.lastStatus.MeshGeneration = string(p.m.intent.revision.uid), p.m.intent.revision.generation
		}
		if !time.Now().Before(end) {
			return r
		}
		time.Sleep(time.Second)
		synctest.Wait()
	}
}

// replace starts the next agent with a saved tunnel.
func (p *proving) replace(saved *savedTunnel) {
	want := p.m.intent
	p.m = newMeshReconciler(p.m.cfg, saved, p.m.apiAddrs, p.m.trigger)
	p.m.intent = want
}

func (p *proving) routes() bool { return len(p.network.routing.Routes) > 0 }

// reports fails if a condition is another one.
func (p *proving) reports(r result, kind string, status proof.Status, reason string) {
	p.Helper()
	i := slices.IndexFunc(r.proofs.Conditions, func(c proof.Condition) bool { return c.Type == kind })
	if i < 0 {
		p.Fatalf("the condition %s is missing: %+v", kind, r.proofs.Conditions)
	}
	if c := r.proofs.Conditions[i]; c.Status != status || c.Reason != reason {
		p.Errorf("got %+v, want %s because of %s", c, status, reason)
	}
}

// TestBlockedUDPLeavesNodePermissive: the pods keep their network, and the node says within a minute that peers do not answer.
func TestBlockedUDPLeavesNodePermissive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextAuto)
		for range 60 {
			r := p.run(time.Second)
			if p.routes() || !p.network.routing.Cleartext || p.network.filter || !r.saved.StrictSince.IsZero() {
				t.Fatalf("routing %+v, filter %v", p.network.routing, p.network.filter)
			}
		}
		r := p.run(time.Second)
		p.reports(r, proof.PeersReachable, proof.False, "PeersLost")
		p.reports(r, proof.Strict, proof.False, "Permissive")
		p.guard.see(0, programs.GuardClassUnknown)
		p.reports(p.run(2*time.Second), proof.Encrypted, proof.False, "NoTunnel")
		if s := r.status.StalePeers; s == nil || s.Count != 1 || s.Nodes[0] != p.peer.Name {
			t.Errorf("lost peers %+v", s)
		}
		p.engine.setReached(p.peer.Agent.Key, true)
		if r = p.run(time.Minute + 10*time.Second); !p.routes() {
			t.Errorf("no routes to a peer that answers: %+v", r.proofs)
		}
	})
}

// TestPathThatDiesIsWithdrawnOnlyWhilePermissive has a path with traffic die.
func TestPathThatDiesIsWithdrawnOnlyWhilePermissive(t *testing.T) {
	for _, c := range []v1alpha1.Cleartext{v1alpha1.CleartextAuto, v1alpha1.CleartextNever} {
		synctest.Test(t, func(t *testing.T) {
			p := newProving(t, c)
			p.engine.setReached(p.peer.Agent.Key, true)
			if p.run(10 * time.Second); !p.routes() {
				t.Fatal("no routes to a peer that answers")
			}
			p.engine.setReached(p.peer.Agent.Key, false)
			p.engine.setNoRoutes(true)
			p.reports(p.run(75*time.Second), proof.PeersReachable, proof.False, "PeersLost")
			p.run(time.Minute)
			if p.routes() != (c == v1alpha1.CleartextNever) {
				t.Errorf("%s: routes %v", c, p.network.routing.Routes)
			}
		})
	}
}

// TestNodeBecomesStrictWhenAllIsProved, and stays so while a peer is lost, in the next agent, and by its status alone.
func TestNodeBecomesStrictWhenAllIsProved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextAuto)
		p.engine.setReached(p.peer.Agent.Key, true)
		r := p.run(time.Minute)
		p.reports(r, proof.Encrypted, proof.Unknown, "NoTraffic")
		if !p.network.routing.Cleartext {
			t.Fatal("strict without a packet of a pod")
		}
		p.guard.see(1, programs.GuardClassLocal)
		r = p.run(20 * time.Second)
		p.reports(r, proof.Encrypted, proof.True, "SeenInTunnel")
		p.reports(r, proof.Strict, proof.True, "Latched")
		if _, strict, attached := p.guard.state(); p.network.routing.Cleartext || !p.network.filter || !strict || !attached || r.status.StrictSince == nil {
			t.Fatalf("routing %+v, guard strict %v, attached %v, status %+v", p.network.routing, strict, attached, r.status)
		}
		p.engine.setReached(p.peer.Agent.Key, false)
		p.in.nodes = p.in.nodes[:1]
		if r = p.run(5 * time.Minute); p.network.routing.Cleartext {
			t.Error("the strict state ended by itself")
		}
		saved := persistedState{Tunnel: r.saved}
		if saved.allowsCleartext(v1alpha1.CleartextAuto) || !saved.allowsCleartext(v1alpha1.CleartextAlways) || saved.allowsCleartext(v1alpha1.CleartextNever) {
			t.Error("wrong before the API is reached")
		}
		again := newMeshReconciler(p.m.cfg, nil, p.m.apiAddrs, p.m.trigger) // of a node whose disk is new
		again.intent = p.m.intent
		defer again.stop()
		if again.mustReconcile(t, p.in); allows(again.intent.cleartext, again.strictSince) {
			t.Error("the next agent begins anew, against its status")
		}
		p.m.intent.cleartext = v1alpha1.CleartextAlways // of a generation that the node followed before
		if r = p.run(time.Second); r.status.StrictSince == nil {
			t.Error("a generation that is not newer ends the strict state")
		}
		p.in.lastStatus = r.status // with a lag
		p.m.intent.revision.generation = 2
		p.m.mustReconcile(t, p.in)
		if r = p.run(time.Second); r.status.StrictSince != nil || !r.saved.StrictSince.IsZero() || !p.network.routing.Cleartext {
			t.Errorf("cleartext Always keeps the node strict: %+v", r.status)
		}
		p.m.intent.revision.generation, p.m.intent.cleartext = 3, v1alpha1.CleartextAuto
		if r = p.m.mustReconcile(t, p.in); r.status.StrictSince != nil {
			t.Error("an earlier status brings the strict state back")
		}
	})
}

// TestRopewalkMeshCreatedAgainEndsStrictState: its generation begins at 1 again.
func TestRopewalkMeshCreatedAgainEndsStrictState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextNever)
		p.m.intent.revision = meshRevision{"first", 5}
		p.engine.setReached(p.peer.Agent.Key, true)
		if r := p.run(10 * time.Second); r.status.StrictSince == nil {
			t.Fatal("cleartext Never makes no node strict")
		}
		p.m.intent.revision, p.m.intent.cleartext = meshRevision{"second", 1}, v1alpha1.CleartextAuto
		if r := p.run(time.Second); r.status.StrictSince == nil {
			t.Fatal("the strict state ends without cleartext Always")
		}
		p.m.intent.revision, p.m.intent.cleartext = meshRevision{"third", 1}, v1alpha1.CleartextAlways
		old := p.in.lastStatus
		if r := p.run(time.Second); r.status.StrictSince != nil {
			t.Error("cleartext Always of a RopewalkMesh that is created again keeps the node strict")
		}
		p.in.lastStatus = old // with a lag
		p.m.intent.revision.generation, p.m.intent.cleartext = 2, v1alpha1.CleartextAuto
		if r := p.m.mustReconcile(t, p.in); r.status.StrictSince != nil {
			t.Error("a status of the former RopewalkMesh brings the strict state back")
		}
	})
}

// TestBlocksWithoutSpareAddressesLatchNothing: Calico's IPAM leaves the tunnel no address, so that no route can be proved by a datagram.
// What pods send into the tunnel is seen nevertheless.
func TestBlocksWithoutSpareAddressesLatchNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextAuto)
		p.m.cfg.PodCIDRSource = PodCIDRsOfCalico
		p.engine.setReached(p.peer.Agent.Key, true)
		var r result
		for range 10 {
			p.guard.see(1, programs.GuardClassLocal)
			r = p.run(time.Minute)
		}
		if s := r.proofs.Peers; s.Reachable != 1 || s.Unprovable != 1 || !p.routes() {
			t.Errorf("got %+v, routes %v", s, p.network.routing.Routes)
		}
		p.reports(r, proof.Encrypted, proof.True, "SeenInTunnel")
		p.reports(r, proof.Strict, proof.False, "Permissive")
	})
}

// TestNothingIsStrictWithout has each thing lack that the latch needs.
func TestNothingIsStrictWithout(t *testing.T) {
	for name, lack := range map[string]func(*proving){
		"pod CIDRs":               func(p *proving) { p.m.intent.pods = nil },
		"tunnel to another node":  func(p *proving) { p.in.nodes = append(p.in.nodes, mesh.Node{Name: "late"}) },
		"routes":                  func(p *proving) { p.engine.setNoRoutes(true) },
		"only packets in tunnels": func(p *proving) { p.guard.see(0, programs.GuardClassRemote) },
		"programs":                func(p *proving) { p.guard.openErr = errHost },
		"plan with late nodes":    func(p *proving) { p.in.nodesAsOf = time.Now().Add(-time.Second) },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newProving(t, v1alpha1.CleartextAuto)
			p.engine.setReached(p.peer.Agent.Key, true)
			lack(p)
			for range 10 {
				p.guard.see(1, programs.GuardClassLocal)
				p.run(15 * time.Second)
			}
			if !p.network.routing.Cleartext {
				t.Errorf("strict without %s", name)
			}
		})
	}
}

// TestLateNodeKeepsNodePermissive has a node join in the survey for which the latch waits, with a peer that does not answer, or without a tunnel.
func TestLateNodeKeepsNodePermissive(t *testing.T) {
	for name, late := range map[string]mesh.Node{"without a tunnel": {Name: "late"}, "without an answer": meshNode(2, noise.PublicKey{2})} {
		synctest.Test(t, func(t *testing.T) {
			p := newProving(t, v1alpha1.CleartextAuto)
			p.engine.setReached(p.peer.Agent.Key, true)
			p.in.nodesAsOf = time.Now().Add(-time.Second)
			p.guard.see(1, programs.GuardClassLocal)
			p.run(time.Minute)
			if !p.m.prover.Latched() {
				t.Fatal("the latch is not ready")
			}
			p.in.nodesAsOf, p.in.nodes = time.Time{}, append(p.in.nodes, late)
			if p.run(time.Minute); !p.network.routing.Cleartext {
				t.Errorf("strict in spite of a late node %s", name)
			}
			p.in.nodes = p.in.nodes[:2]
			if p.run(time.Minute); p.network.routing.Cleartext {
				t.Error("permissive although the late node is gone")
			}
		})
	}
}

// TestAgentRestartKeepsRoutes: a new agent has seen nothing yet, and nothing may leave in the clear meanwhile.
func TestAgentRestartKeepsRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextAuto)
		p.engine.setReached(p.peer.Agent.Key, true)
		r := p.run(10 * time.Second)
		p.m.stop()
		p.replace(r.saved)
		defer p.m.stop()
		if p.run(0); !p.routes() {
			t.Error("the routes are withdrawn")
		}
		p.m.stop()
		r.saved.Unrouted = []string{p.peer.Name}
		p.replace(r.saved)
		defer p.m.stop()
		if p.run(0); p.routes() {
			t.Error("routes lead to a peer that did not answer")
		}
	})
}

// TestKeyChangeKeepsRoutes: nobody has heard from the new key yet.
func TestKeyChangeKeepsRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextAuto)
		p.engine.setReached(p.peer.Agent.Key, true)
		p.run(10 * time.Second)
		changed := *p.peer.Agent
		changed.Key = noise.PublicKey{2}
		p.in.nodes[1].Agent = &changed
		if p.run(0); !p.routes() {
			t.Error("the routes are withdrawn")
		}
	})
}

// TestGuardKnowsAllPods: under `never`, those of refused prefixes as well.
func TestGuardKnowsAllPods(t *testing.T) {
	p := newProving(t, v1alpha1.CleartextNever)
	younger := meshNode(2, noise.PublicKey{2})
	younger.PodCIDRs = p.peer.PodCIDRs
	p.in.nodes = append(p.in.nodes, younger)
	r := p.m.mustReconcile(t, p.in)
	classes, strict, attached := p.guard.state()
	want := map[netip.Prefix]programs.GuardClass{
		clusterPods[0]: programs.GuardClassUnknown, p.in.self.PodCIDRs[0]: programs.GuardClassLocal, p.peer.PodCIDRs[0]: programs.GuardClassRemote,
	}
	maps.DeleteFunc(classes, func(p netip.Prefix, _ programs.GuardClass) bool { return p.IsSingleIP() })
	if !maps.Equal(classes, want) || !strict || !attached || r.refusedPrefixes != 1 {
		t.Errorf("got %v, strict %v, attached %v, %d refused prefixes, want %v", classes, strict, attached, r.refusedPrefixes, want)
	}
	if err := p.m.tearDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, strict, attached := p.guard.state(); strict || attached {
		t.Error("the guard outlives the tunnel")
	}
}

// TestMissingGuardBreaksNothing: the condition says so.
func TestMissingGuardBreaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextNever)
		p.guard.openErr = errHost
		p.engine.setReached(p.peer.Agent.Key, true)
		r := p.run(10 * time.Second)
		p.reports(r, proof.TunnelUp, proof.True, "TunnelUp")
		p.reports(r, proof.Encrypted, proof.Unknown, "GuardMissing")
	})
}

// TestStatusOutlivesFilesOnlyIfStrict has the API's time in another form.
func TestStatusOutlivesFilesOnlyIfStrict(t *testing.T) {
	since := metav1.Unix(1_700_000_000, 0)
	a, b := v1alpha1.NodeStatus{StrictSince: &since}, v1alpha1.NodeStatus{StrictSince: &metav1.Time{Time: since.UTC()}}
	if !sameStatus(a, b) || sameStatus(a, v1alpha1.NodeStatus{}) {
		t.Error("a time is compared by its form")
	}
}

// TestUnknownPodsKeepCleartextReported has a peer whose pods no API lists. Packets for them have no route into the tunnel.
func TestUnknownPodsKeepCleartextReported(t *testing.T) {
	for _, setting := range []v1alpha1.Cleartext{v1alpha1.CleartextAuto, v1alpha1.CleartextNever} {
		m, _, _ := newTestMeshReconciler(t)
		m.intent.cleartext = setting
		own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
		other.PodCIDRs = nil
		r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own, other}})
		if !r.cleartext || !strings.Contains(r.clusterNote, "unencrypted") && !strings.Contains(r.clusterNote, "not encrypted") {
			t.Errorf("%s: cleartext %v, note %q", setting, r.cleartext, r.clusterNote)
		}
	}
}

// TestMetricsCountPacketsAtOnce: a node without changes reconciles every five minutes only.
func TestMetricsCountPacketsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProving(t, v1alpha1.CleartextAuto)
		p.run(time.Second)
		p.guard.see(1, programs.GuardClassLocal)
		var s Stats
		seen := seenNow(p.m.prover.Seen)
		s.seen.Store(&seen)
		families, err := newRegistry(&s).Gather()
		expect.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "ropewalk_agent_guard_packets_total" && m.GetLabel()[0].GetValue() == "local" && m.GetCounter().GetValue() == 1 {
					return
				}
			}
		}
		t.Error("the packet is not counted")
	})
}
