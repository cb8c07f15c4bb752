// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// newTestAgent returns an agent in mesh mode that never reaches its API, with its fake network and engine.
func newTestAgent(t *testing.T, dir string, change func(*Config)) (a *Agent, n *fakeNetwork, e *fakeEngine) {
	t.Helper()
	n, e = &fakeNetwork{}, &fakeEngine{}
	cfg := Config{
		Node: "a", API: &rest.Config{Host: "https://192.0.2.254"}, Mode: mesh.ModeMesh, KeyDir: dir, Log: slog.New(slog.DiscardHandler),
	}
	cfg.Network, cfg.Engine, cfg.Guard = n, e, &fakeGuard{}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.active != nil {
			a.active.stop()
		}
		a.queue.ShutDown()
	})
	if a.cluster.mesh != nil {
		a.setMesh(t, v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextNever, PodCIDRs: []v1alpha1.CIDR{"10.0.0.0/8", "2001:db8::/32"}})
	}
	return a, n, e
}

// setMesh makes a spec that of the RopewalkMesh, as the informer has it.
func (a *Agent) setMesh(t *testing.T, spec v1alpha1.MeshSpec) {
	t.Helper()
	rm := &v1alpha1.RopewalkMesh{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MeshName, UID: "mesh", Generation: 1}, Spec: spec}
	if o, ok, _ := a.cluster.mesh.GetStore().GetByKey(v1alpha1.MeshName); ok {
		rm.Generation = o.(*v1alpha1.RopewalkMesh).Generation + 1
	}
	expect.NoError(t, a.cluster.mesh.GetStore().Add(rm))
}

// savedByFirstAgent has an agent reconcile once and save its state. It returns the input.
func savedByFirstAgent(t *testing.T, dir string, nodes ...mesh.Node) reconcileInput {
	t.Helper()
	a, _, _ := newTestAgent(t, dir, nil)
	l := reconcileInput{nodes: nodes, self: nodes[0]}
	a.knowsNode()
	r, err := a.active.reconcile(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	a.savePersisted(persistedState{Node: "u1", Name: l.self.Name, Mode: mesh.ModeMesh, Routing: r.routing, Tunnel: r.saved, Mesh: &savedMesh{}})
	return l
}

// knowsNode makes the agent one whose node the API has.
func (a *Agent) knowsNode() {
	if a.active == nil {
		a.startReconciler()
	}
	a.advance(eventSynced)
	a.advance(eventNodeKnown)
}

func TestRestartWithoutAPIRestoresTunnel(t *testing.T) {
	dir := t.TempDir()
	other := meshNode(1, noise.PublicKey{1})
	l := savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), other)
	a, n, e := newTestAgent(t, dir, nil)
	expect.NoError(t, a.restorePersisted())
	st := e.now()
	if len(st.Peers) != 1 || st.Peers[0].PublicKey != other.Agent.Key || len(st.Peers[0].AllowedIPs) != 2 {
		t.Errorf("got %+v, want length 1", st.Peers)
	}
	if k, err := openKeyring(dir, 0, nil); err != nil || st.PublicKey != k.current.public() {
		t.Errorf("the engine has another key, or error %v", err)
	}
	if c := e.configuredSince(0)[0]; *c.ListenPort != DefaultPort {
		t.Errorf("got port %d, want %d", *c.ListenPort, DefaultPort)
	}
	if n.mtu != 1440 || !slices.Equal(n.pods, l.self.PodCIDRs) || !slices.Equal(n.routing.Routes, other.PodCIDRs) || n.routing.Cleartext {
		t.Errorf("got %+v, want mtu 1440, pods %v, routing.Routes %v, no cleartext", n, l.self.PodCIDRs, other.PodCIDRs)
	}
	if a.stats.Ready.Load() {
		t.Error("ready before the first reconcile")
	}

	// The API is reached, and the cluster has not changed.
	a.knowsNode()
	r, err := a.active.reconcile(t.Context(), l)
	if err != nil || r.changes != 0 {
		t.Errorf("%d changes, %v", r.changes, err)
	}
}

func TestTunnelIsRepairedWithoutAPI(t *testing.T) {
	dir := t.TempDir()
	other := meshNode(1, noise.PublicKey{1})
	savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), other)
	a, n, e := newTestAgent(t, dir, nil)
	e.setAbsent(true)
	carries := func() {
		t.Helper()
		if !a.processNext(t.Context()) {
			t.Fatal("the queue is shut down")
		}
		if n.routing == nil || len(e.now().Peers) != 1 {
			t.Fatalf("got %+v, %d peers, want non-nil, 1", n.routing, len(e.now().Peers))
		}
	}
	expect.NoError(t, a.restorePersisted())
	e.setAbsent(false)
	carries() // on the retry, without another trigger

	n.routing = nil
	e.clearPeers()
	a.triggerHostChanged()
	carries()
	if a.stats.Reconciles.Load() != 0 || a.stats.Failures.Load() != 0 {
		t.Errorf("%d reconciles before the informers synced", a.stats.Reconciles.Load())
	}
}

func TestObsoleteStateOpensNoTunnel(t *testing.T) {
	for what, edit := range map[string]func(*persistedState){
		"an earlier version kept no peers": func(m *persistedState) { m.Tunnel = nil },
		"the node opted out":               func(m *persistedState) { m.Routing, m.Tunnel = nil, nil },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
			m, err := loadPersistedState(dir)
			expect.NoError(t, err)
			edit(&m)
			expect.NoError(t, m.save(dir))
			a, _, e := newTestAgent(t, dir, nil)
			expect.NoError(t, a.restorePersisted())
			if e.saved.PrivateKey != nil {
				t.Error("an engine was configured")
			}
		})
	}
}

func TestKeyOwnerSurvivesAgentRestart(t *testing.T) {
	dir := t.TempDir()
	own, older, younger := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}), meshNode(2, noise.PublicKey{2})
	l := savedByFirstAgent(t, dir, own, older, younger)
	older.Agent.Key = younger.Agent.Key
	l.nodes[1] = older
	for _, early := range []bool{true, false} {
		a, _, _ := newTestAgent(t, dir, nil)
		a.persisted, _ = loadPersistedState(dir)
		if early {
			expect.NoError(t, a.restorePersisted())
		}
		a.knowsNode()
		r, err := a.active.reconcile(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.saved.Peers) != 1 || r.saved.Peers[0].Node != younger.Name || len(r.problems) != 1 || r.problems[0].Node != older.Name {
			t.Errorf("early %v: got %+v, %+v, want length 1, length 1", early, r.saved.Peers, r.problems)
		}
		a.active.stop()
	}
}

func TestPersistedStateHoldsNoSecrets(t *testing.T) {
	dir := t.TempDir()
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	other.Agent.NextKey = noise.PublicKey{9}
	savedByFirstAgent(t, dir, own, other)
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	private, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), strings.TrimSpace(string(private))) {
		t.Error("the file contains the node's key")
	}
	var m, again persistedState
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	want := &savedTunnel{
		Name: DefaultTunnel, Addrs: own.Addrs, Pods: own.PodCIDRs,
		Peers: []mesh.Peer{
			{Node: "b", Key: noise.PublicKey{1}, Endpoint: other.Agent.Endpoints[0], AllowedIPs: []netip.Prefix{other.PodCIDRs[0], netip.MustParsePrefix("192.0.2.1/32")}},
			{Node: "b", Key: noise.PublicKey{9}, Endpoint: other.Agent.Endpoints[0], Replaces: noise.PublicKey{1}},
		},
		StrictSince: time.Unix(1_700_000_000, 0).UTC(), Unrouted: []string{"b"},
	}
	if m.Tunnel.StrictSince.IsZero() {
		t.Error("not strict, with cleartext=never")
	}
	m.Tunnel.StrictSince, m.Tunnel.Unrouted = want.StrictSince, want.Unrouted
	if !reflect.DeepEqual(m.Tunnel, want) {
		t.Errorf("%+v\nwant\n%+v", m.Tunnel, want)
	}
	if err := m.save(dir); err != nil {
		t.Fatal(err)
	}
	if again, err = loadPersistedState(dir); err != nil || !reflect.DeepEqual(again, m) {
		t.Errorf("got %+v, error %v, want %+v, no error", again, err, m)
	}
}

// TestTunnelIsRepairedWhileNodeIsUnknown is about an agent that has just started.
func TestTunnelIsRepairedWhileNodeIsUnknown(t *testing.T) {
	for what, c := range map[string]struct {
		node types.UID // "": there is none
		err  error
	}{
		"no node": {"", errNodeNotFound},
		"another node, with a stale RopewalkNode": {"u2", errStaleRopewalkNode},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
			a, n, e := newTestAgent(t, dir, nil)
			expect.NoError(t, a.restorePersisted())
			if c.node != "" {
				other := parseNode(t, aNode)
				other.Name, other.UID = a.cfg.Node, c.node
				old := settingsOfN1("u1")
				old.Name = a.cfg.Node
				if err := errors.Join(a.cluster.ownNode.GetStore().Add(other), a.cluster.ownAgent.GetStore().Add(old)); err != nil {
					t.Fatal(err)
				}
			}
			n.routing = nil
			e.clearPeers()
			if err := a.reconcile(t.Context(), hostChanged); !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			if n.routing == nil || len(e.now().Peers) != 1 {
				t.Errorf("got %+v, %+v, want non-nil, length 1", n.routing, e.now().Peers)
			}
		})
	}
}

// TestRunningAgentRepairsTunnelWhileNodeIsUnknown is about an agent that has reconciled before.
func TestRunningAgentRepairsTunnelWhileNodeIsUnknown(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Agent) error
		right  bool
		ready  bool
	}{
		"the node is gone": {
			func(a *Agent) error { return a.cluster.ownNode.GetStore().Delete(parseNode(t, aNode)) }, true, false,
		},
		"the RopewalkNode is gone and cannot be created": {
			func(a *Agent) (err error) {
				a.client, err = newClient(serverAnswering(t, func(*http.Request) {}, http.StatusForbidden))
				return errors.Join(err, a.cluster.ownAgent.GetStore().Delete(settingsOfN1("u1")))
			}, true, true,
		},
		"the node was replaced": {
			func(a *Agent) error {
				n := parseNode(t, aNode)
				n.UID = "u2"
				return a.cluster.ownNode.GetStore().Update(n)
			}, false, false,
		},
	} {
		t.Run(what, func(t *testing.T) {
			a, n := newReconciledAgent(t, slog.New(slog.DiscardHandler))
			if err := c.change(a); err != nil {
				t.Fatal(err)
			}
			n.routing, n.pendingChanges = nil, 1
			a.persisted.Routing, a.persisted.Tunnel = nil, nil // the saved state may be older than the last desired state
			m := a.runningMesh()
			e := m.engine.(*fakeEngine)
			e.setAbsent(false) // it lost its configuration
			if err := a.reconcile(t.Context(), hostChanged); err == nil {
				t.Fatal("reconcile did not fail")
			}
			if right := n.routing != nil && e.now().PublicKey == m.keys.current.public(); right != c.right || a.runningMesh() != m {
				t.Errorf("routing %+v; repaired %v, want %v", n.routing, right, c.right)
			}
			if changes := a.stats.Drift.Load(); changes != 0 != c.right {
				t.Errorf("%d changes counted as drift", changes)
			}
			if ready := a.stats.Ready.Load(); ready != c.ready {
				t.Errorf("ready %v, want %v", ready, c.ready)
			}
		})
	}
}

func TestSpreadModeRestoresNoTunnel(t *testing.T) {
	a, n := newReconciledAgent(t, slog.New(slog.DiscardHandler))
	a.active.stop()
	a.active, a.cfg.Mode, n.routing = &fakeReconciler{}, mesh.ModeSpread, nil
	if err := a.cluster.ownNode.GetStore().Delete(parseNode(t, aNode)); err != nil {
		t.Fatal(err)
	}
	if err := a.reconcile(t.Context(), periodicResync); !errors.Is(err, errNodeNotFound) {
		t.Fatal(err)
	}
	if n.routing != nil || a.runningMesh() != nil {
		t.Errorf("got %+v, want nil", n.routing)
	}
}

// fakeReconciler is a modeReconciler with a fixed result.
type fakeReconciler struct{ result result }

func (d *fakeReconciler) reconcile(context.Context, reconcileInput) (result, error) {
	return d.result, nil
}
func (d *fakeReconciler) tearDown(context.Context) error { return nil }
func (d *fakeReconciler) stop()                          {}

func TestRepairsCountAsDrift(t *testing.T) {
	var log bytes.Buffer
	a, _ := newReconciledAgent(t, slog.New(slog.NewTextHandler(&log, nil)))
	a.active.stop()
	d := &fakeReconciler{}
	a.active = d
	for _, c := range []struct {
		name   string
		result result
		drift  uint64
	}{
		{"only the cluster changed", result{changes: 2}, 0},
		{"both did", result{changes: 3, repaired: 1}, 1},
	} {
		a.requested.Add(1)
		d.result = c.result
		if err := a.reconcile(t.Context(), clusterChanged); err != nil {
			t.Fatal(err)
		}
		if drift := a.stats.Drift.Load(); drift != c.drift || strings.Contains(log.String(), "repaired changes") != (c.drift > 0) {
			t.Errorf("%s: %d, and logged is\n%s", c.name, drift, &log)
		}
	}
}

// TestAgentKeepsOnePlan: the plan of a large cluster takes megabytes, and each reconcile makes another one.
func TestAgentKeepsOnePlan(t *testing.T) {
	a, _ := newReconciledAgent(t, slog.New(slog.DiscardHandler))
	first := a.persisted.Tunnel
	expect.NoError(t, a.reconcile(t.Context(), clusterChanged))
	last := a.runningMesh().lastDesired
	if last.saved == first || a.persisted.Tunnel != last.saved || a.persisted.Routing != last.routing {
		t.Error("the agent keeps the plan of an earlier reconcile for the state that it has saved, beside the last one")
	}
}

// newReconciledAgent returns an agent in mesh mode that has reconciled a cluster of its own node.
func newReconciledAgent(t *testing.T, log *slog.Logger) (*Agent, *fakeNetwork) {
	t.Helper()
	a, n, _ := newTestAgent(t, t.TempDir(), func(c *Config) {
		c.Node, c.API, c.Log = "n1", serverAnswering(t, func(*http.Request) {}, http.StatusOK), log
	})
	own := settingsOfN1("u1")
	own.Spec = v1alpha1.NodeSpec{}
	err := errors.Join(a.cluster.ownNode.GetStore().Add(parseNode(t, aNode)), a.cluster.ownAgent.GetStore().Add(own))
	a.knowsNode()
	if err = errors.Join(err, a.reconcile(t.Context(), clusterChanged)); err != nil {
		t.Fatal(err)
	}
	return a, n
}

func TestDriftIsCountedAndLogged(t *testing.T) {
	var log bytes.Buffer
	a, n := newReconciledAgent(t, slog.New(slog.NewTextHandler(&log, nil)))
	for _, c := range []struct {
		name  string
		w     trigger
		off   int
		err   error
		drift uint64
	}{
		{"the cluster changed", clusterChanged, 1, nil, 0},
		{"nothing to repair", periodicResync, 0, nil, 0},
		{"the repair fails", periodicResync, 1, errHost, 0},
		{"another program changed the interface", hostChanged, 2, nil, 2},
	} {
		log.Reset()
		n.pendingChanges, n.setInterfaceErr = c.off, c.err
		if err := a.reconcile(t.Context(), c.w); !errors.Is(err, c.err) {
			t.Fatal(err)
		}
		if drift := a.stats.Drift.Load(); drift != c.drift || strings.Contains(log.String(), "repaired changes") != (c.drift > 0) {
			t.Errorf("%s: %d, and logged is\n%s", c.name, drift, &log)
		}
	}
}

func TestFailedReconcileKeepsTunnelMetrics(t *testing.T) {
	a, n := newReconciledAgent(t, slog.New(slog.DiscardHandler))
	a.stats.Peers.Store(7)
	n.linkMTUErr = errHost
	if err := a.reconcile(t.Context(), clusterChanged); !errors.Is(err, errHost) {
		t.Fatal(err)
	}
	if a.stats.Peers.Load() != 7 {
		t.Errorf("got %d peers, want 7", a.stats.Peers.Load())
	}
}

func TestFormerInterfaceOfRenamedTunnelIsRemoved(t *testing.T) {
	dir := t.TempDir()
	savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
	for _, c := range []struct {
		tunnel string
		want   []string
	}{{DefaultTunnel, nil}, {"mesh9", []string{DefaultTunnel}}} {
		a, n, e := newTestAgent(t, dir, func(c2 *Config) { c2.Tunnel = c.tunnel })
		expect.NoError(t, a.restorePersisted())
		if !slices.Equal(n.removed, c.want) || len(e.now().Peers) != 1 {
			t.Errorf("tunnel %s: removed %v, %d peers, want %v, 1", c.tunnel, n.removed, len(e.now().Peers), c.want)
		}
	}
}

func TestStateOfAnotherNodeIsDiscarded(t *testing.T) {
	dir := t.TempDir()
	savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
	a, n, e := newTestAgent(t, dir, func(c *Config) { c.Node = "z" })
	expect.NoError(t, a.restorePersisted())
	if n.routing != nil || e.saved.PrivateKey != nil || a.persisted.Node != "" {
		t.Errorf("got %+v, saved %+v, want none", n.routing, e.saved)
	}
	if _, err := os.Stat(filepath.Join(dir, stateFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: got error %v, want %v", err, os.ErrNotExist)
	}
}

// TestStateOfOtherModeEndsStart: routes of a mesh would stay, and drop packets, on a node whose agent spreads.
func TestStateOfOtherModeEndsStart(t *testing.T) {
	dir := t.TempDir()
	savedByFirstAgent(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
	a, n, _ := newTestAgent(t, dir, func(c *Config) { c.Mode = mesh.ModeSpread })
	if err := a.Run(t.Context()); !errors.Is(err, errOtherMode) || n.routing != nil {
		t.Errorf("got %v, want %v; routing %+v", err, errOtherMode, n.routing)
	}
}
