// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestCleartextEndsWhenAllNodesHaveBeenPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n, _ := newTestMeshReconciler(t)
		m.intent.cleartext = v1alpha1.CleartextAuto
		own, late := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
		without := late
		without.Agent = nil
		for _, step := range []struct {
			what      string
			other     mesh.Node
			pass      time.Duration
			cleartext bool
			routes    int
			notes     bool
		}{
			{"a node without an agent", without, 0, true, 0, true},
			{"it has a key", late, 0, true, 1, false},
			{"it is gone before others know it", without, DefaultPropagation / 2, true, 0, true},
			{"it is back", late, DefaultPropagation, true, 1, false},
			{"and stays", late, DefaultPropagation / 2, true, 1, false},
			{"all know it", late, DefaultPropagation / 2, false, 1, false},
			{"it is gone: its pods are not reached in the clear", without, 0, false, 1, true},
		} {
			time.Sleep(step.pass) // fake clock
			r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own, step.other}})
			if n.routing.Cleartext != step.cleartext || n.filter == step.cleartext || r.cleartext != step.cleartext ||
				len(n.routing.Routes) != step.routes || (r.clusterNote != "") != step.notes || r.saved.Strict == step.cleartext {
				t.Errorf("%s: %+v, filter %v, note %q", step.what, n.routing, n.filter, r.clusterNote)
			}
		}
		// The next agent knows.
		saved := persistedState{Tunnel: &savedTunnel{Strict: true}}
		if saved.allowsCleartext(v1alpha1.CleartextAuto) || !saved.allowsCleartext(v1alpha1.CleartextAlways) || saved.allowsCleartext(v1alpha1.CleartextNever) {
			t.Error("wrong before the API is reached")
		}
		again := newMeshReconciler(m.cfg, saved.Tunnel, m.apiAddrs, m.trigger)
		if again.cleartext.allows(v1alpha1.CleartextAuto) {
			t.Error("the next agent begins anew")
		}
	})
}

// TestCleartextEndsAfterSurvey: a node may have joined that has no agent, and nobody has looked yet.
func TestCleartextEndsAfterSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l cleartextLatch
		asOf := time.Now()
		for i, step := range []struct {
			pass     time.Duration
			surveyed bool
			strict   bool
		}{{0, false, false}, {DefaultPropagation, false, false}, {DefaultPropagation, true, true}} {
			time.Sleep(step.pass) // fake clock
			if step.surveyed {
				asOf = time.Now()
			}
			wait := l.update(v1alpha1.CleartextAuto, &mesh.TunnelPlan{}, asOf, DefaultPropagation)
			if l.strict != step.strict || (wait > 0) == step.strict {
				t.Errorf("step %d: strict %v, next look after %s", i, l.strict, wait)
			}
		}
	})
}

// TestUnknownPodsKeepCleartextReported has a peer whose pods no API lists. Packets for them have no route into the tunnel.
func TestUnknownPodsKeepCleartextReported(t *testing.T) {
	for _, setting := range []v1alpha1.Cleartext{v1alpha1.CleartextAuto, v1alpha1.CleartextNever} {
		m, _, _ := newTestMeshReconciler(t)
		m.intent.cleartext, m.cfg.Propagation = setting, 0
		own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
		known := other.PodCIDRs
		other.PodCIDRs = nil
		for range 2 {
			r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own, other}})
			if !r.cleartext || !strings.Contains(r.clusterNote, "not encrypted") || r.saved.Strict != (setting == v1alpha1.CleartextNever) {
				t.Errorf("%s: cleartext %v, note %q, strict %v", setting, r.cleartext, r.clusterNote, r.saved.Strict)
			}
		}
		other.PodCIDRs = known
		m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own, other}})
		if r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own, other}}); r.cleartext || r.clusterNote != "" || !r.saved.Strict {
			t.Errorf("%s: cleartext %v, note %q, strict %v", setting, r.cleartext, r.clusterNote, r.saved.Strict)
		}
	}
}

func TestMissingNftablesIsReported(t *testing.T) {
	m, n, _ := newTestMeshReconciler(t)
	n.filterErr = errNoInterface // any
	own := meshNode(0, noise.PublicKey{})
	r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own}})
	if len(r.notes) != 1 || r.filtering {
		t.Errorf("notes %q, filtering %v", r.notes, r.filtering)
	}
}
