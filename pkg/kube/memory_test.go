// SPDX-License-Identifier: Apache-2.0

package kube

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

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// agentAt is an agent of the mode mesh that never reaches its API, and the engines that it opens.
func agentAt(t *testing.T, dir string, change func(*Config)) (a *Agent, n *fakeNetwork, engines *[]*fakeEngine) {
	t.Helper()
	n, engines = &fakeNetwork{}, &[]*fakeEngine{}
	cfg := Config{
		Node: "a", API: &rest.Config{Host: "https://192.0.2.254"}, Mode: mesh.ModeMesh, KeyDir: dir, Network: n,
		Log: slog.New(slog.DiscardHandler),
		Open: func(string, int, *slog.Logger) (Engine, error) {
			*engines = append(*engines, &fakeEngine{done: make(chan struct{})})
			return (*engines)[len(*engines)-1], nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.early != nil {
			a.early.leave()
		}
		if a.doer != nil {
			a.doer.leave()
		}
		a.queue.ShutDown()
	})
	return a, n, engines
}

// remembering has an agent look at the cluster once, and returns what it keeps of it.
func remembering(t *testing.T, dir string, nodes ...mesh.Node) look {
	t.Helper()
	a, _, _ := agentAt(t, dir, nil)
	l := look{nodes: nodes, own: nodes[0]}
	a.enterAsMesh()
	r, err := a.doer.do(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	a.remember(memory{Node: "u1", Name: l.own.Name, Mode: mesh.ModeMesh, Routing: r.routing, Tunnel: r.kept})
	return l
}

// enterAsMesh is enter without a look at the host for what another mode has left.
func (a *Agent) enterAsMesh() {
	m := a.early
	if m == nil {
		m = newMesher(a.cfg, a.memory.Tunnel, a.api.all, a.again)
	}
	a.doer, a.mode, a.early = m, mesh.ModeMesh, nil
}

func TestAgentThatBeginsWhileTheAPIIsAwayCarriesAsTheOneBefore(t *testing.T) {
	dir := t.TempDir()
	other := meshNode(1, noise.PublicKey{1})
	l := remembering(t, dir, meshNode(0, noise.PublicKey{}), other)
	a, n, engines := agentAt(t, dir, nil)
	a.guard()
	if len(*engines) != 1 {
		t.Fatalf("%d tunnels", len(*engines))
	}
	e := (*engines)[0]
	st := e.Status()
	if len(st.Peers) != 1 || st.Peers[0].PublicKey != other.Agent.Key || len(st.Peers[0].AllowedIPs) != 2 {
		t.Errorf("%+v", st.Peers)
	}
	if k, err := openKeyring(dir, 0, nil); err != nil || st.PublicKey != k.current.public() {
		t.Errorf("another key, %v", err)
	}
	if c := e.toldSince(0)[0]; *c.ListenPort != DefaultPort {
		t.Errorf("port %d", *c.ListenPort)
	}
	if n.mtu != 1440 || !slices.Equal(n.pods, l.own.PodCIDRs) || !slices.Equal(n.routing.Routes, other.PodCIDRs) || !n.refuse {
		t.Errorf("%+v", n)
	}
	if a.stats.engine.Load() == nil || a.stats.Ready.Load() {
		t.Error("it has no metrics, or is ready before it knows")
	}

	// The API is reached, and says what it said before.
	a.enterAsMesh()
	r, err := a.doer.do(t.Context(), l)
	if err != nil || r.changes != 0 || len(*engines) != 1 || a.early != nil {
		t.Errorf("%d changes, %d tunnels, %v", r.changes, len(*engines), err)
	}
}

func TestTunnelIsPutRightWhileTheAPIIsAway(t *testing.T) {
	dir := t.TempDir()
	other := meshNode(1, noise.PublicKey{1})
	remembering(t, dir, meshNode(0, noise.PublicKey{}), other)
	early := true
	a, n, engines := agentAt(t, dir, func(c *Config) {
		open := c.Open
		c.Open = func(name string, mtu int, log *slog.Logger) (Engine, error) {
			if early {
				early = false
				return nil, errors.New("no such device yet")
			}
			return open(name, mtu, log)
		}
	})
	carries := func() {
		t.Helper()
		if !a.next(t.Context()) {
			t.Fatal("it has ended")
		}
		if n.routing == nil || len(*engines) != 1 || len((*engines)[0].Status().Peers) != 1 {
			t.Fatalf("%+v, %d tunnels", n.routing, len(*engines))
		}
	}
	a.guard()
	if len(*engines) != 0 {
		t.Fatal("it is opened")
	}
	carries() // at the next try, which nobody asks for

	n.routing = nil
	(*engines)[0].forgets()
	a.again()
	carries()
	if a.stats.Reconciles.Load() != 0 || a.stats.Failures.Load() != 0 {
		t.Errorf("%d looks at a cluster that is not known", a.stats.Reconciles.Load())
	}
}

func TestTunnelIsNotOpenedByWhatIsNoLongerWanted(t *testing.T) {
	for what, change := range map[string]struct {
		cfg    func(*Config)
		memory func(*memory)
	}{
		"the agent is for another mode":    {cfg: func(c *Config) { c.Mode = mesh.ModeSpread }},
		"administrators want another mode": {memory: func(m *memory) { m.Spec.Mode = v1alpha1.ModeSpread }},
		"an earlier version kept no peers": {memory: func(m *memory) { m.Tunnel = nil }},
		"the node opted out":               {memory: func(m *memory) { m.Routing, m.Tunnel = nil, nil }},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			remembering(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
			if change.memory != nil {
				m, err := recall(dir)
				if err != nil {
					t.Fatal(err)
				}
				change.memory(&m)
				if err := m.keep(dir); err != nil {
					t.Fatal(err)
				}
			}
			a, _, engines := agentAt(t, dir, change.cfg)
			a.guard()
			if len(*engines) != 0 || a.early != nil {
				t.Error("it is opened")
			}
		})
	}
}

func TestElderNodeDoesNotTakeAYoungersKeyWhileItsAgentRestarts(t *testing.T) {
	dir := t.TempDir()
	own, elder, younger := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}), meshNode(2, noise.PublicKey{2})
	l := remembering(t, dir, own, elder, younger)
	elder.Agent.Key = younger.Agent.Key
	l.nodes[1] = elder
	for _, early := range []bool{true, false} {
		a, _, _ := agentAt(t, dir, nil)
		a.memory, _ = recall(dir)
		if early {
			a.guard()
		}
		a.enterAsMesh()
		r, err := a.doer.do(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.kept.Peers) != 1 || r.kept.Peers[0].Node != younger.Name || len(r.problems) != 1 || r.problems[0].Node != elder.Name {
			t.Errorf("early %v: %+v, %+v", early, r.kept.Peers, r.problems)
		}
		a.doer.leave()
	}
}

func TestWhatIsKeptHoldsNoSecrets(t *testing.T) {
	dir := t.TempDir()
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	other.Agent.NextKey = noise.PublicKey{9}
	remembering(t, dir, own, other)
	text, err := os.ReadFile(filepath.Join(dir, memoryFile))
	if err != nil {
		t.Fatal(err)
	}
	private, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), strings.TrimSpace(string(private))) {
		t.Error("the node's key is in it")
	}
	var m, again memory
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	want := &kept{
		Addrs: own.Addrs, Pods: own.PodCIDRs,
		Peers: []mesh.Peer{
			{Node: "b", Key: noise.PublicKey{1}, Endpoint: other.Agent.Endpoints[0], AllowedIPs: []netip.Prefix{other.PodCIDRs[0], netip.MustParsePrefix("192.0.2.1/32")}},
			{Node: "b", Key: noise.PublicKey{9}, Endpoint: other.Agent.Endpoints[0], Succeeds: noise.PublicKey{1}},
		},
	}
	if !reflect.DeepEqual(m.Tunnel, want) {
		t.Errorf("%+v\nwant\n%+v", m.Tunnel, want)
	}
	if err := m.keep(dir); err != nil {
		t.Fatal(err)
	}
	if again, err = recall(dir); err != nil || !reflect.DeepEqual(again, m) {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestTunnelIsPutRightWhileTheClusterDoesNotKnowTheNode is about an agent that has just begun.
func TestTunnelIsPutRightWhileTheClusterDoesNotKnowTheNode(t *testing.T) {
	for what, c := range map[string]struct {
		node types.UID // "" for none
		err  error
	}{
		"there is none":                       {"", errNoNode},
		"it is another, whose agent is to go": {"u2", errEarlier},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			remembering(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
			a, n, engines := agentAt(t, dir, nil)
			a.guard()
			if c.node != "" {
				other := parseNode(t, aNode)
				other.Name, other.UID = a.cfg.Node, c.node
				old := agentOf("u1")
				old.Name = a.cfg.Node
				if err := errors.Join(a.cluster.nodes.GetStore().Add(other), a.cluster.agents.GetStore().Add(old)); err != nil {
					t.Fatal(err)
				}
			}
			n.routing = nil
			(*engines)[0].forgets()
			if err := a.reconcile(t.Context(), onHost); !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			if n.routing == nil || len((*engines)[0].Status().Peers) != 1 {
				t.Errorf("%+v, %+v", n.routing, (*engines)[0].Status().Peers)
			}
		})
	}
}

// TestRunningAgentPutsTheTunnelRightWhileTheClusterDoesNotSayWhatItIs: as one does that has just begun.
func TestRunningAgentPutsTheTunnelRightWhileTheClusterDoesNotSayWhatItIs(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Agent) error
		right  bool
		ready  bool
	}{
		"the node is gone": {
			func(a *Agent) error { return a.cluster.nodes.GetStore().Delete(parseNode(t, aNode)) }, true, false,
		},
		"the RopewalkNode is gone, and the API refuses another": {
			func(a *Agent) (err error) {
				a.client, err = newClient(refusing(t, func(*http.Request) {}, http.StatusForbidden))
				return errors.Join(err, a.cluster.agents.GetStore().Delete(agentOf("u1")))
			}, true, true,
		},
		"it is another node": {
			func(a *Agent) error {
				n := parseNode(t, aNode)
				n.UID = "u2"
				return a.cluster.nodes.GetStore().Update(n)
			}, false, false,
		},
	} {
		t.Run(what, func(t *testing.T) {
			a, n := agentThatLooked(t, slog.New(slog.DiscardHandler))
			if err := c.change(a); err != nil {
				t.Fatal(err)
			}
			n.routing, n.off = nil, 1
			a.memory.Routing, a.memory.Tunnel = nil, nil // which may be of an earlier look: of the last that all went well in
			m := a.mesher()
			m.engine, m.opened = ended{m.engine}, time.Now().Add(-2*shortLife)
			if err := a.reconcile(t.Context(), onHost); err == nil {
				t.Fatal("all is well")
			}
			if right := n.routing != nil && !closed(m.engine.Done()); right != c.right || a.early != nil || a.mesher() != m {
				t.Errorf("%+v; put right %v, want %v; another tunnel beside it %v", n.routing, right, c.right, a.early != nil)
			}
			if changes := a.stats.Drift.Load(); changes != 0 != c.right {
				t.Errorf("%d changes are counted", changes)
			}
			if c.right && *a.stats.engine.Load() != m.engine {
				t.Error("the metrics are those of the tunnel that ended")
			}
			if ready := a.stats.Ready.Load(); ready != c.ready {
				t.Errorf("ready %v, want %v", ready, c.ready)
			}
		})
	}
}

func TestAgentOfAnotherModeBringsNoTunnelBack(t *testing.T) {
	a, n := agentThatLooked(t, slog.New(slog.DiscardHandler))
	a.doer.leave()
	a.doer, a.mode, n.routing = &fakeDoer{}, mesh.ModeSpread, nil
	if err := a.cluster.nodes.GetStore().Delete(parseNode(t, aNode)); err != nil {
		t.Fatal(err)
	}
	if err := a.reconcile(t.Context(), full); !errors.Is(err, errNoNode) {
		t.Fatal(err)
	}
	if n.routing != nil || a.mesher() != nil {
		t.Errorf("%+v", n.routing)
	}
}

// fakeDoer has done what it is said to have.
type fakeDoer struct{ result result }

func (d *fakeDoer) do(context.Context, look) (result, error) { return d.result, nil }
func (d *fakeDoer) undo(context.Context) error               { return nil }
func (d *fakeDoer) leave()                                   {}

func TestWhatIsKnownToBeSomebodyElsesCountsWhateverElseChanged(t *testing.T) {
	var log bytes.Buffer
	a, _ := agentThatLooked(t, slog.New(slog.NewTextHandler(&log, nil)))
	a.doer.leave()
	d := &fakeDoer{}
	a.doer = d
	for _, c := range []struct {
		name   string
		result result
		drift  uint64
	}{
		{"only the cluster changed", result{changes: 2}, 0},
		{"both did", result{changes: 3, mended: 1}, 1},
	} {
		a.asked.Add(1)
		d.result = c.result
		if err := a.reconcile(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		if drift := a.stats.Drift.Load(); drift != c.drift || strings.Contains(log.String(), "put right") != (c.drift > 0) {
			t.Errorf("%s: %d, and logged is\n%s", c.name, drift, &log)
		}
	}
}

// agentThatLooked is one of the mode mesh that has looked at a cluster of its own node.
func agentThatLooked(t *testing.T, log *slog.Logger) (*Agent, *fakeNetwork) {
	t.Helper()
	a, n, _ := agentAt(t, t.TempDir(), func(c *Config) {
		c.Node, c.API, c.Log = "n1", refusing(t, func(*http.Request) {}, http.StatusOK), log
	})
	own := agentOf("u1")
	own.Spec = v1alpha1.NodeSpec{}
	err := errors.Join(a.cluster.nodes.GetStore().Add(parseNode(t, aNode)), a.cluster.agents.GetStore().Add(own))
	a.enterAsMesh()
	if err = errors.Join(err, a.reconcile(t.Context(), changed)); err != nil {
		t.Fatal(err)
	}
	return a, n
}

func TestWhatSomebodyElseChangedIsInTheLog(t *testing.T) {
	var log bytes.Buffer
	a, n := agentThatLooked(t, slog.New(slog.NewTextHandler(&log, nil)))
	for _, c := range []struct {
		name  string
		w     work
		off   int
		err   error
		drift uint64
	}{
		{"the cluster changed", changed, 1, nil, 0},
		{"nothing is off", full, 0, nil, 0},
		{"it could not be put right", full, 1, errNoLink, 0},
		{"somebody changed the interface", onHost, 2, nil, 2},
	} {
		log.Reset()
		n.off, n.unable = c.off, c.err
		if err := a.reconcile(t.Context(), c.w); !errors.Is(err, c.err) {
			t.Fatal(err)
		}
		if drift := a.stats.Drift.Load(); drift != c.drift || strings.Contains(log.String(), "put right") != (c.drift > 0) {
			t.Errorf("%s: %d, and logged is\n%s", c.name, drift, &log)
		}
	}
}

func TestLookThatFailsLeavesTheTunnelsMetrics(t *testing.T) {
	a, n := agentThatLooked(t, slog.New(slog.DiscardHandler))
	a.stats.Peers.Store(7)
	n.broken = errNoLink
	if err := a.reconcile(t.Context(), changed); !errors.Is(err, errNoLink) {
		t.Fatal(err)
	}
	if a.stats.engine.Load() == nil || a.stats.Peers.Load() != 7 {
		t.Errorf("engine %v, %d peers", a.stats.engine.Load(), a.stats.Peers.Load())
	}
}

func TestWhatIsKeptOfAnotherNodeGoes(t *testing.T) {
	dir := t.TempDir()
	remembering(t, dir, meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}))
	left := filepath.Join(dir, memoryFile+".123") // of a crash
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a, n, engines := agentAt(t, dir, func(c *Config) { c.Node = "z" })
	a.guard()
	if n.routing != nil || len(*engines) != 0 || a.memory.Node != "" {
		t.Errorf("%+v, %d tunnels", n.routing, len(*engines))
	}
	for _, path := range []string{left, filepath.Join(dir, memoryFile)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
}
