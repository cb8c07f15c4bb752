// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// meshReconciler is the modeReconciler of mesh mode: ropewalk is the cluster's WireGuard.
type meshReconciler struct {
	cfg      Config
	intent   intent              // the last known one
	apiAddrs func() []netip.Addr // the API server's addresses, which bypass the tunnel
	trigger  func()              // requests a reconcile
	keyRotation
	engineState
	peerTracker
	handoverWatcher
	resolver *endpointResolver
	external []mesh.ExternalPeer       // the last known ones
	accepted map[string][]netip.Prefix // TunnelPlan.AcceptedPrefixes of the last plan
	proofs
	encryption    nodeEncryption
	filterErr     error          // of the last attempt to install the filter for unencrypted packets
	filtering     bool           // the filter is installed
	loggedWithout bool           // nodes without a tunnel were logged
	lastDesired   *desiredTunnel // nil: none yet
}

// desiredTunnel is the tunnel's last desired state.
type desiredTunnel struct {
	keyGeneration int64
	setup         setup
	postQuantum   config.PostQuantum
	routing       *host.Routing
	saved         *savedTunnel
	guard         *meshmode.GuardState // nil: the guard keeps its state
}

// newMeshReconciler returns a reconciler without a tunnel. It takes the owners of keys from the saved tunnel, if there is one.
func newMeshReconciler(cfg Config, saved *savedTunnel, apiAddrs func() []netip.Addr, trigger func()) *meshReconciler {
	m := &meshReconciler{cfg: cfg, apiAddrs: apiAddrs, trigger: trigger}
	m.engine = cfg.Engine
	m.sentEndpoints = mesh.SentEndpoints{}
	m.handovers = mesh.HandoverPoll{Propagation: cfg.Propagation}
	m.proofs = newProofs(&cfg, saved)
	if saved != nil {
		m.keyOwners, m.accepted, m.knowsPostQuantum = mesh.KeyOwnersOf(saved.Peers), saved.Accepted, saved.PostQuantum
		m.external = append(mesh.ExternalPeersOf(saved.Peers), mesh.HeldPeersOf(saved.Accepted, saved.Peers)...)
	}
	m.resolver = newEndpointResolver(m.external, cfg.Log, trigger)
	return m
}

// reconcile implements modeReconciler.
func (m *meshReconciler) reconcile(ctx context.Context, in reconcileInput) (result, error) {
	r, plan, err := m.reconcilePlan(ctx, in)
	m.applied(&m.intent, in.nodes, &plan, &r, err)
	o := m.prover.Outcome()
	r.proofs, r.status.StalePeers = &o, lostNodes(&o, m.keyOwners)
	if !m.strictSince.IsZero() {
		r.status.StrictSince = &metav1.Time{Time: m.strictSince}
	}
	return r, err
}

// reconcilePlan is reconcile without the proofs.
func (m *meshReconciler) reconcilePlan(ctx context.Context, in reconcileInput) (r result, plan mesh.TunnelPlan, err error) {
	if err := m.openKeys(in.spec.KeyGeneration); err != nil {
		return r, plan, err
	}
	if in.intent != nil {
		m.intent = *in.intent
	}
	encrypts, note := m.encryption.update(&in)
	wait := m.updateStrict(&m.intent, &in, m.cfg.Propagation)
	if plan, err = m.plan(ctx, in); err != nil {
		return r, plan, err
	}
	allowed := allows(m.intent.cleartext, m.strictSince)
	m.keyOwners, m.accepted = mesh.KeyOwnersOf(plan.Peers), plan.AcceptedPrefixes
	r = m.planned(&in, &plan, allowed)
	r.clusterNote = joinNotes(r.clusterNote, note)
	m.logWithoutTunnel(&plan, allowed)
	want, err := m.desiredSetup(in)
	if err != nil {
		return r, plan, err
	}
	r.routing = &host.Routing{Routes: plan.Routes, Exempt: plan.Exempt, MTU: smallerThan(plan.MTU, want.mtu), Cleartext: allowed}
	r.routing.Nodes = m.encryption.routing(&m.intent.nodes, &plan, in.self.Addrs, want.port, m.cfg.Ports)
	r.saved = &savedTunnel{Name: m.cfg.Tunnel, Addrs: in.self.Addrs, Pods: plan.Pods, Peers: plan.Peers, StrictSince: m.strictSince, Accepted: m.accepted, Unrouted: m.unroutedNodes(&plan, allowed)}
	if m.cfg.PodCIDRSource == PodCIDRsOfCalico { // each address of a block may be a pod's
		r.routing.Sources, r.saved.Pods = in.self.Addrs, nil
	}
	guard := &meshmode.GuardState{Classes: guardClasses(&plan, m.intent.pods, tunnelAddrs(r.saved.Pods)), Strict: !allowed}
	m.lastDesired = &desiredTunnel{in.spec.KeyGeneration, want, m.intent.postQuantum, r.routing, r.saved, guard}
	r.changes, err = m.apply(m.lastDesired)
	if m.filterErr != nil {
		r.notes = append(r.notes, "unencrypted packets from other nodes and their pods are not filtered: "+m.filterErr.Error())
	}
	if len(m.omitted) > 0 {
		r.notes = append(r.notes, "the engine knows no post-quantum keys, and does not have the RopewalkPeers that require them: "+strings.Join(m.omitted, ", "))
	}
	if r.filtering = m.filtering; err != nil {
		return r, plan, err
	}
	rotation, note, err := m.stepRotation(in)
	if r.requeueAfter = soonest(wait, rotation); note != "" {
		r.notes = append(r.notes, note)
	}
	r.status, r.announcement = m.status(plan), m.announcement(in.self)
	r.announcement.EncryptsNodes = encrypts
	m.have = nil // of thousands of peers
	return r, plan, err
}

// planned returns what a plan adds to the result.
func (m *meshReconciler) planned(in *reconcileInput, plan *mesh.TunnelPlan, allowed bool) (r result) {
	r.problems, r.notes = plan.Problems, plan.Notes
	r.withoutTunnel, r.cleartext = len(plan.WithoutTunnel), allowed || len(plan.UnknownPods) > 0
	if in.externalKnown {
		r.external = &externalOutcome{plan.Refused, in.nodes, in.self}
	}
	r.externalPeers, r.refusedPrefixes = countExternal(plan.Peers), plan.RefusedPrefixes
	r.nodeRoutes, r.clearNodes = len(plan.NodeRoutes), len(plan.ClearNodes)
	r.clusterNote = joinNotes(cleartextNote(m.intent.cleartext, m.intent.pods, allowed, plan), clearNodesNote(plan))
	return r
}

// plan returns the tunnel's plan.
func (m *meshReconciler) plan(ctx context.Context, in reconcileInput) (mesh.TunnelPlan, error) {
	if in.externalKnown {
		m.external = in.external
	}
	cfg := mesh.TunnelConfig{
		Bypass: m.apiAddrs(), Cleartext: allows(m.intent.cleartext, m.strictSince), LeadsInto: m.leadsInto, Pods: m.intent.pods, Services: m.intent.services, KeyOwners: m.keyOwners,
		External: m.resolver.resolve(ctx, m.external), AcceptedPrefixes: m.accepted, OwnKeys: m.keys.public(), Keepalive: in.settings.Keepalive,
		Nodes: m.encryption.traffic(&m.intent.nodes),
	}
	m.deciding = map[string]bool{}
	plan, err := mesh.Tunnel(in.self.Name, in.nodes, cfg)
	if err == nil {
		m.resolver.retry(ctx, plan.Inside)
	}
	return plan, err
}

// maxLoggedNodes bounds the names in a log line.
const maxLoggedNodes = 10

// logWithoutTunnel logs when the first node without a tunnel appears, and when there is none any more.
func (m *meshReconciler) logWithoutTunnel(plan *mesh.TunnelPlan, cleartext bool) {
	n := len(plan.WithoutTunnel)
	if (n > 0) == m.loggedWithout {
		return
	}
	m.loggedWithout = n > 0
	if n == 0 {
		m.cfg.Log.Info("all nodes have a tunnel", "cleartext_allowed", cleartext)
		return
	}
	names := plan.WithoutTunnel[:min(n, maxLoggedNodes)]
	if cleartext {
		m.cfg.Log.Warn("some nodes have no tunnel, traffic for their pods is not encrypted", "nodes", n, "names", names)
		return
	}
	m.cfg.Log.Warn("some nodes have no tunnel, traffic for their pods is dropped", "nodes", n, "names", names)
}

// joinNotes joins all notes but empty ones.
func joinNotes(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// applyPersisted restores the tunnel that an earlier agent saved.
func (m *meshReconciler) applyPersisted(s *persistedState, i *intent) error {
	m.intent = *i
	if err := m.openKeys(s.Spec.KeyGeneration); err != nil {
		return err
	}
	want, err := m.desiredSetup(reconcileInput{self: mesh.Node{Name: m.cfg.Node, Addrs: s.Tunnel.Addrs}, settings: s.Settings})
	if err == nil {
		_, err = m.apply(&desiredTunnel{s.Spec.KeyGeneration, want, i.postQuantum, s.Routing, s.Tunnel, m.persistedGuard(s)})
	}
	return err
}

// persistedGuard returns what the guard does before the API is reached. In the permissive state it would drop nothing.
func (m *meshReconciler) persistedGuard(s *persistedState) *meshmode.GuardState {
	if s.Routing.Cleartext {
		return nil
	}
	plan := &mesh.TunnelPlan{Routes: s.Routing.Routes, Beside: s.Routing.Exempt, Pods: s.Tunnel.Pods}
	return &meshmode.GuardState{Classes: guardClasses(plan, m.intent.pods, tunnelAddrs(s.Tunnel.Pods)), Strict: true}
}

// reapply restores the last desired state and returns the number of changes.
func (m *meshReconciler) reapply() (changes int, err error) {
	if m.lastDesired == nil {
		return 0, nil
	}
	if err := m.openKeys(m.lastDesired.keyGeneration); err != nil {
		return 0, err
	}
	return m.apply(m.lastDesired)
}

// openKeys reads the node's keys.
func (m *meshReconciler) openKeys(requested int64) (err error) {
	if m.keys == nil {
		m.keys, err = openKeyring(m.cfg.KeyDir, requested, rand.Reader)
	}
	return err
}

// apply makes the tunnel match the desired state and returns the number of changes. It changes nothing on the host while another program
// serves the interface. The filter for unencrypted packets does not depend on routes and engine.
func (m *meshReconciler) apply(d *desiredTunnel) (changes int, err error) {
	st, unusable := m.engine.Status()
	if errors.Is(unusable, engine.ErrForeign) {
		m.setup = setup{}
		return 0, fmt.Errorf("configuring the tunnel %s: %w", m.cfg.Tunnel, unusable)
	}
	if d.guard != nil {
		m.guard.Before(*d.guard)
	}
	changes, err = m.applyTunnel(d, &st, unusable)
	if _, noRoutes := errors.AsType[*routesError](err); d.guard != nil && (d.guard.Strict || !noRoutes) {
		m.guard.After(*d.guard)
	}
	return changes + m.setFilter(!d.routing.Cleartext, d.routing.Nodes), err
}

// applyTunnel makes routes, engine and interface match the desired state. Routes come first:
// while no engine runs, they keep traffic for other nodes' pods from leaving in the clear. They
// follow changes of the engine as well: the interface may be another one.
func (m *meshReconciler) applyTunnel(d *desiredTunnel, st *engine.Status, unusable error) (changes int, err error) {
	if changes, err = m.cfg.Network.SetRoutes(m.cfg.Tunnel, d.routing); err != nil {
		return changes, &routesError{err}
	}
	n, err := m.configureEngine(d, st, unusable)
	if changes += n; n == 0 {
		return changes, err // the routes lead into the tunnel already, and there may be many
	}
	n, again := m.cfg.Network.SetRoutes(m.cfg.Tunnel, d.routing)
	if again != nil {
		again = &routesError{again}
	}
	return changes + n, errors.Join(err, again)
}

// setFilter installs or removes the filter for unencrypted packets. Its failure, on a kernel without nftables, does not stop the
// tunnel: the node's condition reports it.
func (m *meshReconciler) setFilter(wanted bool, nodes *host.NodeRouting) (changes int) {
	changes, err := m.cfg.Network.SetPlaintextFilter(m.cfg.Tunnel, wanted, nodes)
	if err != nil && m.filterErr == nil {
		m.logFilterError(wanted, err)
	}
	m.filterErr, m.filtering = err, wanted && err == nil
	return changes
}

func (m *meshReconciler) logFilterError(wanted bool, err error) {
	log := m.cfg.Log.With("table", "inet "+host.FilterTable, "error", err)
	if wanted {
		log.Warn("installing the nftables table that drops unencrypted packets failed, such packets may be accepted: retrying on each reconcile")
		return
	}
	log.Warn("removing the nftables table that drops unencrypted packets failed, such packets are still dropped: retrying on each reconcile")
}

// smallerThan returns the routes' MTUs that are smaller than the tunnel's. It changes mtus.
func smallerThan(mtus map[netip.Prefix]int, tunnel int) map[netip.Prefix]int {
	maps.DeleteFunc(mtus, func(_ netip.Prefix, mtu int) bool { return mtu >= tunnel })
	if len(mtus) == 0 {
		return nil
	}
	return mtus
}

// status returns the fields of the node's status that mesh mode fills in.
func (m *meshReconciler) status(plan mesh.TunnelPlan) v1alpha1.NodeStatus {
	st := v1alpha1.NodeStatus{KeyGeneration: m.keys.current.number}
	for _, p := range plan.Peers {
		if p.Replaces.IsZero() && !p.IsExternal() {
			st.Peers++
		}
	}
	have := m.nodePeers(m.have)
	for i := range have {
		if have[i].Spread.Active {
			st.SpreadsTo++
		}
	}
	return st
}

// announcement returns what other nodes need of this one.
func (m *meshReconciler) announcement(self mesh.Node) v1alpha1.AnnouncementSpec {
	s := v1alpha1.AnnouncementSpec{
		PublicKey: publicKeyOf(m.keys.current), NextPublicKey: publicKeyOf(m.keys.next), Endpoints: announce.EndpointsOf(self, m.setup.port),
		PodCIDRs: announce.CIDRsOf(self), MTU: int32(m.setup.mtu), SpreadPorts: announce.PortsOf(m.cfg.Ports),
	}
	if m.cfg.PodCIDRSource != PodCIDRsOfNodes {
		s.PodCIDRSource = string(m.cfg.PodCIDRSource)
	}
	return s
}

// tearDown removes the tunnel. Traffic for other nodes' pods then follows the cluster's other routes.
func (m *meshReconciler) tearDown(context.Context) error {
	m.stop()
	m.resolver.stop()
	m.lastDesired = nil
	unguarded := m.guard.Remove() // first: in the strict state it would drop what leaves without the tunnel
	if err := m.engine.Forget(); err != nil {
		m.cfg.Log.Warn("removing the configuration with which the engine starts failed: the engine may serve a tunnel that no route leads into", "error", err)
	}
	if _, err := m.cfg.Network.SetPlaintextFilter(m.cfg.Tunnel, false, nil); err != nil {
		m.cfg.Log.Warn("tunnel ended, but removing the nftables table that drops unencrypted packets failed: without the tunnel it drops nothing", "interface", m.cfg.Tunnel, "table", "inet "+host.FilterTable, "error", err)
	}
	_, err := m.cfg.Network.SetRoutes(m.cfg.Tunnel, nil)
	if err := m.cfg.Network.RemoveInterface(m.cfg.Tunnel); err != nil { // harmless: no route uses it
		m.cfg.Log.Warn("tunnel ended, but removing its interface failed: no route leads into it", "interface", m.cfg.Tunnel, "error", err)
	}
	return errors.Join(unguarded, err)
}

// stop ends the goroutines. The tunnel and its routes stay.
func (m *meshReconciler) stop() {
	m.handover.stop()
	m.handshakes.stop()
	m.prover.Stop()
	m.guard.Close()
	m.setup = setup{}
	clear(m.sentEndpoints)
	m.configured = nil
}
