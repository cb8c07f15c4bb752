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

// mesher is the cluster's WireGuard.
type mesher struct {
	cfg Config
	rotator
	direct    func() []netip.Addr
	engine    Engine // nil: none runs
	fresh     bool   // it has no peers yet
	opened    time.Time
	rest      time.Duration // between opened and the next engine
	setup     setup         // of the engine
	told      mesh.Told
	holders   mesh.Holders
	nudging   *nudging  // nil: nobody was yet
	handover  *handover // nil: no peer's key changes
	handovers mesh.Handovers
	stale     stale
	last      *wanted // nil: nothing was yet
	again     func()
}

// wanted is what the cluster has said that a tunnel is to be.
type wanted struct {
	keyGeneration int64
	setup         setup
	routing       *Routing
	kept          *kept
}

// newMesher returns one that knows who has which key by what an agent before it has kept, if any.
func newMesher(cfg Config, before *kept, direct func() []netip.Addr, again func()) *mesher {
	if cfg.Open == nil {
		cfg.Open = OpenPersistentEngine
	}
	m := &mesher{cfg: cfg, direct: direct, told: mesh.Told{}, again: again, handovers: mesh.Handovers{Learn: cfg.Learn}}
	if before != nil {
		m.holders = mesh.HoldersOf(before.Peers)
	}
	return m
}

func (m *mesher) do(_ context.Context, l look) (r result, err error) {
	if err := m.openKeys(l.spec.KeyGeneration); err != nil {
		return r, err
	}
	plan, err := mesh.Tunnel(l.own.Name, l.nodes, mesh.TunnelConfig{
		Direct: m.direct(), Cleartext: m.cfg.Cleartext, Pods: m.cfg.Pods, Holders: m.holders,
	})
	if err != nil {
		return r, err
	}
	m.holders, r.problems, r.notes = mesh.HoldersOf(plan.Peers), plan.Problems, plan.Notes
	want, err := m.setupOf(l)
	if err != nil {
		return r, err
	}
	r.routing = &Routing{Routes: plan.Routes, Exempt: plan.Exempt, MTU: smaller(plan.MTU, want.mtu)}
	r.kept = &kept{Addrs: l.own.Addrs, Pods: l.own.PodCIDRs, Peers: plan.Peers}
	m.last = &wanted{l.spec.KeyGeneration, want, r.routing, r.kept}
	if r.changes, err = m.carry(want, r.routing, r.kept); err != nil {
		return r, err
	}
	wait, note, err := m.rotate(l)
	if r.wait = wait; note != "" {
		r.notes = append(r.notes, note)
	}
	r.status = m.status(l.own, plan)
	return r, err
}

// resume has the tunnel be as an agent before this one has left it.
func (m *mesher) resume(before *memory) error {
	if err := m.openKeys(before.Spec.KeyGeneration); err != nil {
		return err
	}
	want, err := m.setupOf(look{own: mesh.Node{Name: m.cfg.Node, Addrs: before.Tunnel.Addrs}, spec: before.Spec})
	if err == nil {
		_, err = m.carry(want, before.Routing, before.Tunnel)
	}
	return err
}

// renew makes the tunnel be as it was last to be, and returns how many changes that took.
func (m *mesher) renew() (changes int, err error) {
	if m.last == nil {
		return 0, nil
	}
	if err := m.openKeys(m.last.keyGeneration); err != nil {
		return 0, err
	}
	return m.carry(m.last.setup, m.last.routing, m.last.kept)
}

// openKeys reads the node's keys, unless a tunnel runs with them: an agent that ended meanwhile may have changed them.
func (m *mesher) openKeys(asked int64) (err error) {
	if m.keys == nil || m.engine == nil {
		m.keys, err = openKeyring(m.cfg.KeyDir, asked, rand.Reader)
		m.announced, m.probe = time.Time{}, nil
	}
	return err
}

// carry makes the tunnel be as it should, and returns how many changes that took. First comes what is left when the engine is
// gone: nothing for another node's pods leaves in the clear.
func (m *mesher) carry(want setup, routing *Routing, k *kept) (changes int, err error) {
	route := func() (int, error) { return m.cfg.Network.SetRoutes(m.cfg.Tunnel, routing, !m.cfg.Cleartext) }
	before, set := m.engine, 0
	for _, step := range []func() (int, error){
		route,
		func() (_ int, err error) { set, err = m.run(want, k.Pods); return set, err },
		func() (int, error) { return 0, m.useKey() },
		func() (int, error) { return m.settle(k.Peers) },
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

// smaller are those of the MTUs that are smaller than the tunnel's.
func smaller(all map[netip.Prefix]int, tunnel int) map[netip.Prefix]int {
	maps.DeleteFunc(all, func(_ netip.Prefix, mtu int) bool { return mtu >= tunnel })
	if len(all) == 0 {
		return nil
	}
	return all
}

// settle makes the engine's peers those of a plan, and returns how many changes that took.
func (m *mesher) settle(peers []mesh.Peer) (int, error) {
	m.unfollow()
	defer m.follow(peers)
	st := m.engine.Status()
	changes := mesh.Diff(mesh.Shift(peers, st.Peers), st.Peers, m.told)
	if len(changes) == 0 {
		return 0, nil
	}
	if err := m.engine.Configure(config.Device{Peers: changes}); err != nil {
		return 0, fmt.Errorf("changing peers: %w", err)
	}
	m.told.Remember(changes)
	if m.fresh {
		m.fresh = false
		m.nudging.stop()
		m.nudging = nudge(m.engine, inTurn(m.engine.Status().Peers), m.cfg.Log)
	}
	m.cfg.Log.Info("peers changed", "changes", len(changes), "peers", len(peers))
	return len(changes), nil
}

func (m *mesher) status(own mesh.Node, plan mesh.TunnelPlan) v1alpha1.NodeStatus {
	st := v1alpha1.NodeStatus{
		PublicKey: keyOf(m.keys.current), KeyGeneration: m.keys.current.number, NextPublicKey: keyOf(m.keys.next),
		Endpoints: endpointsOf(own, m.setup.port), PodCIDRs: cidrsOf(own), MTU: int32(m.setup.mtu), SpreadPorts: portsOf(m.cfg.Ports),
	}
	for _, p := range plan.Peers {
		if p.Succeeds.IsZero() {
			st.Peers++
		}
	}
	have := m.engine.Status().Peers
	for i := range have {
		if have[i].Spread.Active {
			st.SpreadsTo++
		}
	}
	st.StalePeers = m.stale.look(time.Now(), have, plan.Peers)
	return st
}

// keyOf is what others are told of a key, nothing for none.
func keyOf(g generation) v1alpha1.PublicKey {
	if g.number == 0 {
		return ""
	}
	return v1alpha1.PublicKey(g.public().Base64())
}

func portsOf(p spread.Ports) *v1alpha1.Ports {
	return &v1alpha1.Ports{First: int32(p.First), Last: int32(p.Last)}
}

// undo ends the tunnel: what is for other nodes' pods goes where the cluster's other routes say.
func (m *mesher) undo(context.Context) error {
	m.leave()
	m.last = nil
	_, err := m.cfg.Network.SetRoutes(m.cfg.Tunnel, nil, false)
	if err := m.cfg.Network.RemoveInterface(m.cfg.Tunnel); err != nil { // without routes, it is in nobody's way
		m.cfg.Log.Warn("the tunnel's interface stays", "interface", m.cfg.Tunnel, "error", err)
	}
	return err
}

// leave ends the tunnel. What is for it is dropped until there is another: its interface and its routes stay.
func (m *mesher) leave() {
	m.unfollow()
	m.nudging.stop()
	if m.engine != nil {
		m.engine.Close()
	}
	m.engine, m.setup = nil, setup{}
	clear(m.told)
	m.stale = stale{}
}
