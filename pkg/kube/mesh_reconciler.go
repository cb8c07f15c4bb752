// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// meshReconciler is the cluster's WireGuard.
type meshReconciler struct {
	cfg Config
	keyRotation
	apiAddrs      func() []netip.Addr
	engine        Engine // nil: none runs
	hasNoPeers    bool   // it has no peers yet
	opened        time.Time
	reopenDelay   time.Duration // between opened and the next engine
	setup         setup         // of the engine
	sentEndpoints mesh.SentEndpoints
	keyOwners     mesh.KeyOwners
	handshakes    *handshakeTrigger // nil: nobody was yet
	handover      *handover         // nil: no peer's key changes
	handovers     mesh.HandoverPoll
	unresponsive  unresponsive
	lastDesired   *desiredTunnel // nil: nothing was yet
	trigger       func()
}

// desiredTunnel is what the cluster has said that a tunnel is to be.
type desiredTunnel struct {
	keyGeneration int64
	setup         setup
	routing       *Routing
	saved         *savedTunnel
}

// newMeshReconciler returns one that knows who has which key by what an agent before it has kept, if any.
func newMeshReconciler(cfg Config, before *savedTunnel, direct func() []netip.Addr, again func()) *meshReconciler {
	if cfg.Open == nil {
		cfg.Open = OpenPersistentEngine
	}
	m := &meshReconciler{cfg: cfg, apiAddrs: direct, sentEndpoints: mesh.SentEndpoints{}, trigger: again, handovers: mesh.HandoverPoll{Propagation: cfg.Propagation}}
	if before != nil {
		m.keyOwners = mesh.KeyOwnersOf(before.Peers)
	}
	return m
}

func (m *meshReconciler) reconcile(_ context.Context, l reconcileInput) (r result, err error) {
	if err := m.openKeys(l.spec.KeyGeneration); err != nil {
		return r, err
	}
	plan, err := mesh.Tunnel(l.self.Name, l.nodes, mesh.TunnelConfig{
		Bypass: m.apiAddrs(), Cleartext: m.cfg.Cleartext, Pods: m.cfg.Pods, KeyOwners: m.keyOwners,
	})
	if err != nil {
		return r, err
	}
	m.keyOwners, r.problems, r.notes = mesh.KeyOwnersOf(plan.Peers), plan.Problems, plan.Notes
	want, err := m.desiredSetup(l)
	if err != nil {
		return r, err
	}
	r.routing = &Routing{Routes: plan.Routes, Exempt: plan.Exempt, MTU: smallerThan(plan.MTU, want.mtu)}
	r.saved = &savedTunnel{Addrs: l.self.Addrs, Pods: l.self.PodCIDRs, Peers: plan.Peers}
	m.lastDesired = &desiredTunnel{l.spec.KeyGeneration, want, r.routing, r.saved}
	if r.changes, err = m.apply(want, r.routing, r.saved); err != nil {
		return r, err
	}
	wait, note, err := m.stepRotation(l)
	if r.requeueAfter = wait; note != "" {
		r.notes = append(r.notes, note)
	}
	r.status = m.status(l.self, plan)
	return r, err
}

// applyPersisted has the tunnel be as an agent before this one has left it.
func (m *meshReconciler) applyPersisted(before *persistedState) error {
	if err := m.openKeys(before.Spec.KeyGeneration); err != nil {
		return err
	}
	want, err := m.desiredSetup(reconcileInput{self: mesh.Node{Name: m.cfg.Node, Addrs: before.Tunnel.Addrs}, spec: before.Spec})
	if err == nil {
		_, err = m.apply(want, before.Routing, before.Tunnel)
	}
	return err
}

// reapply makes the tunnel be as it was last to be, and returns how many changes that took.
func (m *meshReconciler) reapply() (changes int, err error) {
	if m.lastDesired == nil {
		return 0, nil
	}
	if err := m.openKeys(m.lastDesired.keyGeneration); err != nil {
		return 0, err
	}
	return m.apply(m.lastDesired.setup, m.lastDesired.routing, m.lastDesired.saved)
}

// openKeys reads the node's keys, unless a tunnel runs with them: an agent that ended meanwhile may have changed them.
func (m *meshReconciler) openKeys(asked int64) (err error) {
	if m.keys == nil || m.engine == nil {
		m.keys, err = openKeyring(m.cfg.KeyDir, asked, rand.Reader)
		m.announcedAt, m.probe = time.Time{}, nil
	}
	return err
}

// apply makes the tunnel be as it should, and returns how many changes that took. First comes what is left when the engine is
// gone: nothing for another node's pods leaves in the clear.
func (m *meshReconciler) apply(want setup, routing *Routing, k *savedTunnel) (changes int, err error) {
	route := func() (int, error) { return m.cfg.Network.SetRoutes(m.cfg.Tunnel, routing, !m.cfg.Cleartext) }
	before, set := m.engine, 0
	for _, step := range []func() (int, error){
		route,
		func() (_ int, err error) { set, err = m.ensureEngine(want, k.Pods); return set, err },
		func() (int, error) { return 0, m.ensureKey() },
		func() (int, error) { return m.configurePeers(k.Peers) },
		func() (int, error) {
			if m.engine == before && set == 0 {
				return 0, nil // the routes lead into the tunnel already, and all of them may be many
			}
			return route()
		},
	} {
		n, err := step()
		if changes += n; err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// smallerThan are those of the MTUs that are smaller than the tunnel's.
func smallerThan(all map[netip.Prefix]int, tunnel int) map[netip.Prefix]int {
	maps.DeleteFunc(all, func(_ netip.Prefix, mtu int) bool { return mtu >= tunnel })
	if len(all) == 0 {
		return nil
	}
	return all
}

// applyConfigs makes the engine's peers those of a plan, and returns how many changes that took.
func (m *meshReconciler) configurePeers(peers []mesh.Peer) (int, error) {
	m.stopHandover()
	defer m.startHandover(peers)
	st := m.engine.Status()
	changes := mesh.Diff(mesh.AssignByHandshake(peers, st.Peers), st.Peers, m.sentEndpoints)
	if len(changes) == 0 {
		return 0, nil
	}
	if err := m.engine.Configure(config.Device{Peers: changes}); err != nil {
		return 0, fmt.Errorf("changing peers: %w", err)
	}
	m.sentEndpoints.Record(changes)
	if m.hasNoPeers {
		m.hasNoPeers = false
		m.handshakes.stop()
		m.handshakes = triggerHandshakes(m.engine, byLastHandshake(m.engine.Status().Peers), m.cfg.Log)
	}
	m.cfg.Log.Info("peers changed", "changes", len(changes), "peers", len(peers))
	return len(changes), nil
}

func (m *meshReconciler) status(own mesh.Node, plan mesh.TunnelPlan) v1alpha1.NodeStatus {
	st := v1alpha1.NodeStatus{
		PublicKey: publicKeyOf(m.keys.current), KeyGeneration: m.keys.current.number, NextPublicKey: publicKeyOf(m.keys.next),
		Endpoints: endpointsOf(own, m.setup.port), PodCIDRs: cidrsOf(own), MTU: int32(m.setup.mtu), SpreadPorts: portsOf(m.cfg.Ports),
	}
	for _, p := range plan.Peers {
		if p.Replaces.IsZero() {
			st.Peers++
		}
	}
	have := m.engine.Status().Peers
	for i := range have {
		if have[i].Spread.Active {
			st.SpreadsTo++
		}
	}
	st.StalePeers = m.unresponsive.update(time.Now(), have, plan.Peers)
	return st
}

// publicKeyOf is what others are told of a key, nothing for none.
func publicKeyOf(g generation) v1alpha1.PublicKey {
	if g.number == 0 {
		return ""
	}
	return v1alpha1.PublicKey(g.public().Base64())
}

func portsOf(p spread.Ports) *v1alpha1.Ports {
	return &v1alpha1.Ports{First: int32(p.First), Last: int32(p.Last)}
}

// tearDown ends the tunnel: what is for other nodes' pods goes where the cluster's other routes say.
func (m *meshReconciler) tearDown(context.Context) error {
	m.stop()
	m.lastDesired = nil
	_, err := m.cfg.Network.SetRoutes(m.cfg.Tunnel, nil, false)
	if err := m.cfg.Network.RemoveInterface(m.cfg.Tunnel); err != nil { // without routes, it is in nobody's way
		m.cfg.Log.Warn("the tunnel's interface stays", "interface", m.cfg.Tunnel, "error", err)
	}
	return err
}

// stop ends the tunnel. What is for it is dropped until there is another: its interface and its routes stay.
func (m *meshReconciler) stop() {
	m.stopHandover()
	m.handshakes.stop()
	if m.engine != nil {
		m.engine.Close()
	}
	m.engine, m.setup = nil, setup{}
	clear(m.sentEndpoints)
	m.unresponsive = unresponsive{}
}
