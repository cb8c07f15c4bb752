// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/ebpf/guard"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// fakeEngine is an Engine without packets.
type fakeEngine struct {
	mu          sync.Mutex
	status      config.Status
	changes     []config.Device
	saved       config.Device     // that it would start with
	forgotten   bool              // saved was removed
	probed      []noise.PublicKey // in this order
	probes      map[noise.PublicKey]uint64
	reached     map[noise.PublicKey]bool  // peers that answer probes
	noRoutes    bool                      // datagrams are not answered
	unusable    error                     // of each request: engine.ErrAbsent or ErrOutdated
	rejectsKeys bool                      // it rejects private keys
	peersErr    error                     // of the next change of peers
	saveErr     error                     // of Save
	gone        bool                      // it ends before it answers the next change
	quantum     *config.PostQuantumReport // nil: it does not know exchanges
	busyPort    uint16                    // of another program: the engine has no open port, and cannot open this one; 0: none
}

func (e *fakeEngine) Configure(c config.Device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unusable != nil {
		return e.unusable
	}
	if e.gone {
		e.unusable = engine.ErrAbsent
		return io.ErrUnexpectedEOF
	}
	if e.rejectsKeys && c.PrivateKey != nil {
		return errKeyRejected
	}
	if err := e.peersErr; err != nil && len(c.Peers) > 0 {
		e.peersErr = nil
		return err
	}
	if e.busyPort != 0 && c.ListenPort != nil {
		if *c.ListenPort == e.busyPort {
			return errPortInUse
		}
		e.busyPort = 0
	}
	if e.quantum == nil && (c.PostQuantum != nil || slices.ContainsFunc(c.Peers, func(p config.Peer) bool { return p.PostQuantum != nil })) {
		return errUnknownKey
	}
	e.changes = append(e.changes, c)
	if c.PrivateKey != nil {
		e.status.PublicKey = c.PrivateKey.Public()
	}
	if c.ListenPort != nil {
		e.status.ListenPort = *c.ListenPort
	}
	if c.PostQuantum != nil {
		e.quantum = &config.PostQuantumReport{Policy: *c.PostQuantum}
	}
	if c.FwMark != nil {
		e.status.FwMark = *c.FwMark
	}
	if c.ReplacePeers {
		e.status.Peers = nil
	}
	for _, p := range c.Peers {
		i := slices.IndexFunc(e.status.Peers, func(st config.PeerStatus) bool { return st.PublicKey == p.PublicKey })
		switch {
		case p.Remove && i >= 0:
			e.status.Peers = slices.Delete(e.status.Peers, i, i+1)
			continue
		case i < 0 && (p.Remove || p.UpdateOnly):
			continue
		case i < 0:
			i = len(e.status.Peers)
			e.status.Peers = append(e.status.Peers, config.PeerStatus{PublicKey: p.PublicKey})
		}
		st := &e.status.Peers[i]
		for _, a := range p.AllowedIPs {
			st.AllowedIPs = slices.DeleteFunc(st.AllowedIPs, func(has netip.Prefix) bool { return has == a.Prefix })
			if !a.Remove {
				st.AllowedIPs = append(st.AllowedIPs, a.Prefix)
			}
		}
		if p.Keepalive != nil {
			st.Keepalive = *p.Keepalive
		}
		if p.Name != nil {
			st.Name = *p.Name
		}
		if p.PostQuantum != nil {
			st.PostQuantum = config.PeerPostQuantum{Policy: *p.PostQuantum, Own: *p.PostQuantum != config.PostQuantumDefault}
		}
		if p.Endpoint != nil {
			st.Endpoint, st.EndpointName = *p.Endpoint, p.EndpointName
		}
	}
	return nil
}

var (
	errKeyRejected = errors.New("key rejected")
	errPortInUse   = &uapi.Error{Errno: unix.EADDRINUSE}
	errUnknownKey  = &uapi.Error{Errno: unix.EINVAL}
)

func (e *fakeEngine) Status() (engine.Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unusable != nil {
		return engine.Status{}, e.unusable
	}
	return engine.Status{Status: e.copyStatus(), Up: e.busyPort == 0, PostQuantum: e.quantum}, nil
}

// StatusOf returns more peers than asked for, as an older engine does.
func (e *fakeEngine) StatusOf(...noise.PublicKey) (config.Status, error) {
	st, err := e.Status()
	return st.Status, err
}

func (e *fakeEngine) PostQuantum() (*config.PostQuantumReport, error) {
	st, err := e.Status()
	return st.PostQuantum, err
}

// now returns the status, for tests.
func (e *fakeEngine) now() config.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.copyStatus()
}

func (e *fakeEngine) copyStatus() config.Status {
	st := e.status
	st.Peers = slices.Clone(st.Peers)
	for i := range st.Peers {
		st.Peers[i].AllowedIPs = slices.Clone(st.Peers[i].AllowedIPs)
	}
	return st
}

// Probe reports the answers to the probes before, of peers that reached.
func (e *fakeEngine) Probe(keys ...noise.PublicKey) (map[noise.PublicKey]config.PeerProbe, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unusable != nil {
		return nil, e.unusable
	}
	e.probed = append(e.probed, keys...)
	reports := map[noise.PublicKey]config.PeerProbe{}
	for _, key := range keys {
		n := e.probes[key]
		reports[key] = config.PeerProbe{Up: true, Sent: n}
		if e.reached[key] {
			reports[key] = config.PeerProbe{Up: true, Session: true, Echoes: true, Sent: n, Answered: n, Reflected: n}
		}
		if e.probes == nil {
			e.probes = map[noise.PublicKey]uint64{}
		}
		e.probes[key] = n + 1
	}
	return reports, nil
}

// openAsker is the cluster's network: reflectors answer at once, if they are reached.
func (e *fakeEngine) openAsker(netip.Addr, uint16) (meshmode.Asker, error) {
	return &fakeAsker{e: e, closed: make(chan struct{}), ready: make(chan struct{})}, nil
}

type fakeAsker struct {
	e             *fakeEngine
	answered      func(netip.Addr)
	closed, ready chan struct{}
}

func (a *fakeAsker) Ask(peer netip.Addr) error {
	<-a.ready
	a.e.mu.Lock()
	silent := a.e.noRoutes
	a.e.mu.Unlock()
	if !silent {
		a.answered(peer)
	}
	return nil
}

func (a *fakeAsker) Serve(_ func() int, answered func(netip.Addr)) {
	a.answered = answered
	close(a.ready)
	<-a.closed
}

func (a *fakeAsker) Close() error {
	close(a.closed)
	return nil
}

func (e *fakeEngine) setNoRoutes(none bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noRoutes = none
}

// setReached sets whether a peer answers probes.
func (e *fakeEngine) setReached(key noise.PublicKey, is bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reached == nil {
		e.reached = map[noise.PublicKey]bool{}
	}
	e.reached[key] = is
}

// fakeGuard is a GuardHost, and its Programs.
type fakeGuard struct {
	mu       sync.Mutex
	classes  map[netip.Prefix]programs.GuardClass
	strict   bool
	attached bool
	openErr  error
	counts   [2]programs.GuardCounts // beside the tunnel, and in it
}

func (g *fakeGuard) Open() (meshmode.Programs, error) {
	if g.openErr != nil {
		return nil, g.openErr
	}
	return g, nil
}

func (g *fakeGuard) Remove() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attached, g.strict, g.classes = false, false, nil
	return nil
}

func (g *fakeGuard) SetPrefixes(classes map[netip.Prefix]programs.GuardClass) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.classes = classes
	return nil
}

func (g *fakeGuard) SetStrict(strict bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.strict = strict
	return nil
}

func (g *fakeGuard) Attach(string) ([]guard.Attached, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attached = true
	return []guard.Attached{{Name: "eth0", Index: 2}}, nil
}

func (g *fakeGuard) Counts() (beside, tunneled programs.GuardCounts, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts[0], g.counts[1], nil
}

func (*fakeGuard) Close() error { return nil }

// see counts a packet of a class, beside the tunnel or in it.
func (g *fakeGuard) see(inTunnel int, class programs.GuardClass) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &g.counts[inTunnel][class]
	c.Passed++
	c.Last = programs.GuardPacket{Time: time.Now(), Device: 2, Address: netip.MustParseAddr("10.244.1.9")}
}

// state returns what the guard does.
func (g *fakeGuard) state() (classes map[netip.Prefix]programs.GuardClass, strict, attached bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.classes), g.strict, g.attached
}

func (e *fakeEngine) Save(c config.Device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.saveErr != nil {
		return e.saveErr
	}
	e.saved, e.forgotten = c, false
	return nil
}

func (e *fakeEngine) Forget() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.saved, e.forgotten = config.Device{}, true
	return nil
}

func (*fakeEngine) Watch(context.Context, func()) {}

// setAbsent removes the engine, or starts it again without a configuration.
func (e *fakeEngine) setAbsent(absent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unusable, e.status = nil, config.Status{}
	if absent {
		e.unusable = engine.ErrAbsent
	}
}

// setBusyPort closes the engine's port, and gives a port to another program.
func (e *fakeEngine) setBusyPort(port uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busyPort = port
}

// takeProbed returns the keys that were probed since the last call.
func (e *fakeEngine) takeProbed() []noise.PublicKey {
	e.mu.Lock()
	defer e.mu.Unlock()
	keys := e.probed
	e.probed = nil
	return keys
}

// setRejectsKeys makes the engine reject private keys, or accept them again.
func (e *fakeEngine) setRejectsKeys(reject bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rejectsKeys = reject
}

// configuredSince returns the changes after the first n.
func (e *fakeEngine) configuredSince(n int) []config.Device {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.changes[n:])
}

// clearPeers removes all peers, as another program may.
func (e *fakeEngine) clearPeers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status.Peers = nil
}

// recordHandshake records a handshake with a peer.
func (e *fakeEngine) recordHandshake(key noise.PublicKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.status.Peers {
		if e.status.Peers[i].PublicKey == key {
			e.status.Peers[i].LastHandshake = time.Now()
		}
	}
}

// fakeNetwork is a Network that records its arguments.
type fakeNetwork struct {
	routing           *host.Routing
	setRoutesCalls    int // calls of SetRoutes
	setInterfaceCalls int // calls of SetInterface
	pods              []netip.Prefix
	mtu               int
	pendingChanges    int               // changes that the next SetInterface reports
	linkMTUErr        error             // error of LinkMTU
	setInterfaceErr   error             // error of SetInterface
	filter            bool              // of SetPlaintextFilter
	nodes             *host.NodeRouting // likewise
	filterErr         error             // error of SetPlaintextFilter
	removed           []string          // by RemoveInterface
}

func (n *fakeNetwork) SetRoutes(_ string, r *host.Routing) (int, error) {
	n.routing = r
	n.setRoutesCalls++
	return 0, nil
}

func (n *fakeNetwork) SetPlaintextFilter(_ string, wanted bool, nodes *host.NodeRouting) (int, error) {
	n.filter, n.nodes = wanted, nodes
	return 0, n.filterErr
}

func (n *fakeNetwork) SetInterface(_ string, mtu int, pods []netip.Prefix) (int, error) {
	n.setInterfaceCalls++
	n.mtu, n.pods = mtu, pods
	changes := n.pendingChanges
	n.pendingChanges = 0
	return changes, n.setInterfaceErr
}

func (n *fakeNetwork) RemoveInterface(name string) error {
	n.removed = append(n.removed, name)
	return nil
}

// errHost is any error of the host.
var errHost = errors.New("no interface")

func (n *fakeNetwork) LinkMTU([]netip.Addr) (int, error) { return 1500, n.linkMTUErr }

// meshNode returns the i-th node, like the one in pkg/cluster/mesh's tests.
func meshNode(i byte, key noise.PublicKey) mesh.Node {
	addr := netip.AddrFrom4([4]byte{192, 0, 2, i})
	return mesh.Node{
		Name: string('a' + rune(i)), Created: time.Unix(int64(i), 0), Addrs: []netip.Addr{addr},
		PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24)},
		Agent:    &mesh.Agent{Mode: mesh.ModeMesh, Key: key, Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, DefaultPort)}},
	}
}

// newTestMeshReconciler returns a reconciler with its fake network and engine.
func newTestMeshReconciler(t *testing.T) (*meshReconciler, *fakeNetwork, *fakeEngine) {
	t.Helper()
	n, e := &fakeNetwork{}, &fakeEngine{}
	cfg := Config{KeyDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), MeshConfig: MeshConfig{
		Network: n, Engine: e, Guard: &fakeGuard{}, ReflectPort: DefaultReflectPort, openAsker: e.openAsker,
	}}
	m := newMeshReconciler(cfg.withDefaults(), nil, func() []netip.Addr { return nil }, func() {})
	m.prover.Engine = &fakeEngine{} // the other's probes start handshakes
	t.Cleanup(m.stop)
	return m, n, e
}

func (m *meshReconciler) mustReconcile(t *testing.T, l reconcileInput) result {
	t.Helper()
	r, err := m.reconcile(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRefusedConfigurationIsNotRecorded: otherwise the removal of a peer that only failed would later be logged as that of another
// program's peer.
func TestRefusedConfigurationIsNotRecorded(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	var log bytes.Buffer
	m.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	m.mustReconcile(t, reconcileInput{nodes: []mesh.Node{own, other}, self: own})
	alone := reconcileInput{nodes: []mesh.Node{own}, self: own}
	e.peersErr = errors.New("no memory")
	if _, err := m.reconcile(t.Context(), alone); err == nil {
		t.Fatal("the engine's error is lost")
	}
	m.mustReconcile(t, alone)
	if n := len(e.now().Peers); n != 0 || strings.Contains(log.String(), "another program") {
		t.Errorf("%d peers, log %s", n, log.String())
	}
}

// newAgentOf returns the reconciler of an agent that replaces another one, beside the same engine.
func newAgentOf(t *testing.T, m *meshReconciler) *meshReconciler {
	t.Helper()
	next, _, _ := newTestMeshReconciler(t)
	next.cfg.KeyDir, next.engine = m.cfg.KeyDir, m.engine
	return next
}

// TestNextAgentTriggersNoHandshakes: with the first node that joins after an upgrade, each agent would start one with each node.
func TestNextAgentTriggersNoHandshakes(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	<-m.handshakes.done
	if got := e.takeProbed(); !slices.Equal(got, []noise.PublicKey{{1}}) {
		t.Fatalf("the first agent probed %v", got)
	}
	next := newAgentOf(t, m)
	next.mustReconcile(t, l)
	l.nodes = append(l.nodes, meshNode(2, noise.PublicKey{2}))
	next.mustReconcile(t, l)
	if got := e.takeProbed(); next.handshakes != nil || len(got) != 0 {
		t.Errorf("the next agent probed %v", got)
	}
}

// TestNodeThatMovesAfterUpgradeIsFollowed: the engine of an upgraded agent has all peers already.
func TestNodeThatMovesAfterUpgradeIsFollowed(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	next := newAgentOf(t, m)
	next.mustReconcile(t, l)
	moved := netip.MustParseAddrPort("192.0.2.200:51820")
	l.nodes[1].Addrs = []netip.Addr{moved.Addr()}
	l.nodes[1].Agent.Endpoints = []netip.AddrPort{moved}
	next.mustReconcile(t, l)
	if got := e.now().Peers[0].Endpoint.AddrPort; got != moved {
		t.Errorf("the tunnel has the endpoint %s of the node that moved, want %s", got, moved)
	}
}

// TestEngineStartsWithLastConfiguration: an engine that crashes reads its file, before any agent knows of the crash.
func TestEngineStartsWithLastConfiguration(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	l.settings.Port, l.settings.Keepalive, l.nodes = 7, 25, append(l.nodes, meshNode(2, noise.PublicKey{2}))
	m.mustReconcile(t, l)
	started := &fakeEngine{}
	if err := started.Configure(e.saved); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e.now(), started.now(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if p := e.now(); p.ListenPort != 7 || len(p.Peers) != 2 || p.Peers[0].Keepalive != 25 {
		t.Errorf("got %+v", p)
	}
}

// TestPortOfAnotherProgramIsSetAgain: an engine that starts while its port is taken reports the port that it does not have.
func TestPortOfAnotherProgramIsSetAgain(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	e.setBusyPort(DefaultPort)
	for range 2 {
		var refused *setupError
		if _, err := m.reconcile(t.Context(), l); !errors.Is(err, unix.EADDRINUSE) || !errors.As(err, &refused) {
			t.Fatalf("got %v, want %v", err, unix.EADDRINUSE)
		}
	}
	e.setBusyPort(1) // the port is free
	before := len(e.configuredSince(0))
	m.mustReconcile(t, l)
	if got := e.configuredSince(before); len(got) != 1 || got[0].ListenPort == nil || *got[0].ListenPort != DefaultPort {
		t.Errorf("configured %+v, want the port", got)
	}
	m.mustReconcile(t, l)
	if got := e.configuredSince(before + 1); len(got) != 0 {
		t.Errorf("configured %+v, although the port is open", got)
	}
}

// TestForeignTunnelIsLeftAlone: also by an agent that has not reached its API.
func TestForeignTunnelIsLeftAlone(t *testing.T) {
	m, n, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	e.unusable = engine.ErrForeign
	if _, err := m.reconcile(t.Context(), reconcileInput{nodes: []mesh.Node{own, other}, self: own}); !errors.Is(err, engine.ErrForeign) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&fakeNetwork{}, n, cmp.AllowUnexported(fakeNetwork{})); diff != "" || e.saved.PrivateKey != nil {
		t.Errorf("the host was changed: %s, saved %+v", diff, e.saved)
	}
	a, _, _ := newTestAgent(t, t.TempDir(), func(c *Config) { c.Network, c.Engine = n, e })
	a.persisted, a.intent = persistedState{Mode: mesh.ModeMesh, Routing: &host.Routing{}}, &intent{}
	a.startReconciler()
	if err := a.applyPersisted(); !errors.Is(err, engine.ErrForeign) || n.setRoutesCalls != 0 {
		t.Errorf("before the API is reached: %v, %+v", err, n)
	}
}

// TestFilterDoesNotDependOnEngine: an engine that fails for hours must not leave the node open for unencrypted packets, nor keep the filter.
func TestFilterDoesNotDependOnEngine(t *testing.T) {
	m, n, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	e.setAbsent(true)
	r, err := m.reconcile(t.Context(), reconcileInput{nodes: []mesh.Node{own, other}, self: own})
	if !errors.Is(err, engine.ErrAbsent) || !n.filter || !r.filtering {
		t.Errorf("%v; filter %v, reported %v", err, n.filter, r.filtering)
	}
	n.filterErr = errors.New("no nftables")
	if r, err = m.reconcile(t.Context(), reconcileInput{nodes: []mesh.Node{own, other}, self: own}); err == nil || r.filtering || len(r.notes) != 1 {
		t.Errorf("%v; filter reported %v, notes %v", err, r.filtering, r.notes)
	}
}

// TestRefusedPortIsNotSaved: an engine that crashes would start with it, and have no port.
func TestRefusedPortIsNotSaved(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	udp := config.UnderlayUDP
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	l.settings.Underlay = udp
	m.mustReconcile(t, l)
	m.engine = &rejectingEngine{Engine: e, rejects: true}
	automatic := config.UnderlayAuto
	l.settings.Port, l.settings.Underlay, l.nodes = 7, automatic, append(l.nodes, meshNode(2, noise.PublicKey{2}))
	for _, absent := range []bool{false, false, true} {
		if absent {
			e.setAbsent(true)
		}
		if _, err := m.reconcile(t.Context(), l); err == nil {
			t.Fatal("the engine's error is lost")
		}
		if *e.saved.ListenPort != DefaultPort || *e.saved.Underlay != udp || len(e.saved.Peers) != 2 {
			t.Errorf("absent %v: saved port %d, underlay %s, %d peers", absent, *e.saved.ListenPort, *e.saved.Underlay, len(e.saved.Peers))
		}
	}
	e.setAbsent(false)
	m.engine = e
	m.mustReconcile(t, l)
	if *e.saved.ListenPort != 7 || *e.saved.Underlay != automatic {
		t.Errorf("saved port %d, underlay %s", *e.saved.ListenPort, *e.saved.Underlay)
	}
}

// TestRequiredDoesNotDependOnPort: an agent that starts while another program has the port gives the engine its policy, and never saves a weaker one.
func TestRequiredDoesNotDependOnPort(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	in := reconcileInput{nodes: []mesh.Node{own, other}, self: own, intent: &intent{cleartext: v1alpha1.CleartextAuto, postQuantum: config.PostQuantumRequired}}
	e.quantum = &config.PostQuantumReport{}
	m.mustReconcile(t, in)
	e.setBusyPort(DefaultPort)
	for _, policy := range []config.PostQuantum{config.PostQuantumRequired, config.PostQuantumOff} { // the second of an engine that was told nothing
		m = newMeshReconciler(m.cfg, nil, m.apiAddrs, m.trigger)
		m.prover.Engine = &fakeEngine{}
		e.quantum = &config.PostQuantumReport{Policy: policy}
		for range 2 {
			if _, err := m.reconcile(t.Context(), in); !errors.Is(err, unix.EADDRINUSE) {
				t.Fatalf("got %v, want %v", err, unix.EADDRINUSE)
			}
			if saved := e.saved.PostQuantum; saved == nil || *saved != config.PostQuantumRequired || e.quantum.Policy != config.PostQuantumRequired {
				t.Errorf("saved %v, the engine has %v", saved, e.quantum.Policy)
			}
		}
		m.stop()
	}
}

// TestAbsentEngineMayBeOlder: it would refuse a file with a key that it does not know, and stay absent. A required key is never left out.
func TestAbsentEngineMayBeOlder(t *testing.T) {
	for policy, want := range map[config.PostQuantum]bool{config.PostQuantumAuto: false, config.PostQuantumRequired: true} {
		m, _, e := newTestMeshReconciler(t)
		own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
		in := reconcileInput{nodes: []mesh.Node{own, other}, self: own, intent: &intent{cleartext: v1alpha1.CleartextAuto, postQuantum: policy}}
		e.setAbsent(true)
		if _, err := m.reconcile(t.Context(), in); !errors.Is(err, engine.ErrAbsent) || e.saved.PrivateKey == nil || (e.saved.PostQuantum != nil) != want {
			t.Errorf("%s: %v, saved %v", policy, err, e.saved.PostQuantum)
		}
	}
}

// TestRequiredNamesAnOlderEngine: its peers follow the cluster, but it gets no tunnel if it has none.
func TestRequiredNamesAnOlderEngine(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	want := intent{cleartext: v1alpha1.CleartextAuto, postQuantum: config.PostQuantumRequired}
	in := reconcileInput{nodes: []mesh.Node{own, other}, self: own, intent: &want}
	reconcile := func(peers int) {
		t.Helper()
		_, err := m.reconcile(t.Context(), in)
		if st := m.prover.Outcome().Conditions[0]; !errors.Is(err, engine.ErrOutdated) || st.Reason != "EngineOutdated" || len(e.now().Peers) != peers {
			t.Errorf("got %v, %+v, %d peers, want %d", err, st, len(e.now().Peers), peers)
		}
	}
	reconcile(0)
	in.intent = &intent{cleartext: v1alpha1.CleartextAuto}
	m.mustReconcile(t, in)
	in.intent, in.nodes = &want, append(in.nodes, meshNode(2, noise.PublicKey{2}))
	reconcile(2)
	if saved := e.saved.PostQuantum; saved == nil || *saved != want.postQuantum {
		t.Errorf("saved %v", saved)
	}
	e.quantum = &config.PostQuantumReport{}
	if m.mustReconcile(t, in); e.quantum.Policy != config.PostQuantumRequired {
		t.Errorf("a newer engine has %s", e.quantum.Policy)
	}
}

// TestPostQuantumFollowsTheMesh: an engine that does not know exchanges does without, unless they are required. One that was replaced gets the
// policy again.
func TestPostQuantumFollowsTheMesh(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	in := reconcileInput{nodes: []mesh.Node{own, other}, self: own, intent: &intent{cleartext: v1alpha1.CleartextAuto}}
	last := func(policy config.PostQuantum) (sent *config.PostQuantum) {
		t.Helper()
		before := len(e.configuredSince(0))
		want := *in.intent
		want.postQuantum, in.intent = policy, &want
		m.mustReconcile(t, in)
		for _, c := range e.configuredSince(before) {
			if c.PostQuantum != nil {
				sent = c.PostQuantum
			}
		}
		return sent
	}
	if sent := last(config.PostQuantumAuto); sent != nil || e.saved.PostQuantum != nil {
		t.Errorf("sent %v to an engine that does not know it, saved %v", sent, e.saved.PostQuantum)
	}
	if len(m.prover.Outcome().Conditions) != 5 {
		t.Errorf("got conditions %+v", m.prover.Outcome().Conditions)
	}
	e.quantum = &config.PostQuantumReport{Policy: config.PostQuantumOff}
	for _, step := range []struct{ wanted, has, sent config.PostQuantum }{
		{config.PostQuantumAuto, config.PostQuantumOff, config.PostQuantumAuto},
		{config.PostQuantumAuto, config.PostQuantumAuto, config.PostQuantumDefault},
		{config.PostQuantumAuto, config.PostQuantumOff, config.PostQuantumAuto}, // another engine
		{config.PostQuantumRequired, config.PostQuantumAuto, config.PostQuantumRequired},
	} {
		e.quantum.Policy = step.has
		sent := last(step.wanted)
		if (sent != nil) != (step.sent != config.PostQuantumDefault) || sent != nil && *sent != step.sent {
			t.Errorf("%+v: sent %v", step, sent)
		}
		if saved := e.saved.PostQuantum; saved == nil || *saved != step.wanted {
			t.Errorf("%+v: saved %v", step, saved)
		}
	}
	e.quantum.Policy = config.PostQuantumRequired
	if sent := last(config.PostQuantumDefault); sent == nil || *sent != config.PostQuantumDefault {
		t.Errorf("a policy that was removed is sent as %v, want the default", sent)
	}
}

// TestEndOfEngineIsNoRefusal: an engine that ends during a change has not refused the settings.
func TestEndOfEngineIsNoRefusal(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	e.gone = true
	l.settings.Port = 7
	var refused *setupError
	if _, err := m.reconcile(t.Context(), l); !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &refused) {
		t.Errorf("got %v, a refusal: %v", err, refused != nil)
	}
	if m.setup != (setup{}) || *e.saved.ListenPort != 7 {
		t.Errorf("setup %+v, saved port %d", m.setup, *e.saved.ListenPort)
	}
}

// TestPeersDoNotWaitForFile: a full disk must not cut off nodes that join, but no key is used that the file does not have.
func TestPeersDoNotWaitForFile(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	full := errors.New("no space left on device")
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	e.saveErr = full
	if _, err := m.reconcile(t.Context(), l); !errors.Is(err, full) || !e.now().PublicKey.IsZero() {
		t.Fatalf("a key without a file: %v, %+v", err, e.now())
	}
	e.saveErr = nil
	m.mustReconcile(t, l)
	e.saveErr = full
	l.nodes = append(l.nodes, meshNode(2, noise.PublicKey{2}))
	if _, err := m.reconcile(t.Context(), l); !errors.Is(err, full) || len(e.now().Peers) != 2 {
		t.Errorf("got %v, %d peers", err, len(e.now().Peers))
	}
	e.saveErr = nil
	if m.mustReconcile(t, l); len(e.saved.Peers) != 2 {
		t.Errorf("saved %d peers", len(e.saved.Peers))
	}
}

// TestAbsentEngineIsConfiguredLater: meanwhile routes keep traffic from leaving in the clear, and the file is there for its start.
func TestAbsentEngineIsConfiguredLater(t *testing.T) {
	m, n, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	e.setAbsent(true)
	if _, err := m.reconcile(t.Context(), l); !errors.Is(err, engine.ErrAbsent) {
		t.Fatal(err)
	}
	if n.routing == nil || n.setInterfaceCalls != 0 || len(e.saved.Peers) != 1 {
		t.Errorf("without an engine: %+v, saved %+v", n, e.saved)
	}
	e.setAbsent(false)
	m.mustReconcile(t, l)
	if st := e.now(); len(st.Peers) != 1 || st.PublicKey != m.keys.current.public() {
		t.Errorf("got %+v", st)
	}
	e.setAbsent(true)
	if err := m.tearDown(t.Context()); err != nil || !e.forgotten || n.routing != nil {
		t.Errorf("a node that leaves: %v, forgotten %v, routing %v", err, e.forgotten, n.routing)
	}
}

func TestInterfaceIsCheckedOnEachReconcile(t *testing.T) {
	m, n, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	pods := own.PodCIDRs
	own.PodCIDRs = nil // the controller manager sets them later (calico #8039)
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	own.PodCIDRs = pods
	l.self, l.nodes[0], l.settings.MTU = own, own, 1400
	m.mustReconcile(t, l)
	if n.setInterfaceCalls != 2 || !slices.Equal(n.pods, pods) || n.mtu != 1400 {
		t.Errorf("got %+v, want setInterfaceCalls 2, pods %v, mtu 1400", n, pods)
	}
	l.settings.Port = 7
	if r := m.mustReconcile(t, l); r.announcement.Endpoints[0] != "192.0.2.0:7" || e.now().ListenPort != 7 {
		t.Errorf("%+v; the engine has port %d", r.status, e.now().ListenPort)
	}
	if n.routing.Cleartext || len(n.routing.Routes) != 1 || n.routing.Routes[0] != other.PodCIDRs[0] {
		t.Errorf("got %+v", n.routing)
	}
}

// TestCalicoBlocksGiveNoAddress: the first address of a block may be a pod's, and a status holds no more than 16 prefixes.
func TestCalicoBlocksGiveNoAddress(t *testing.T) {
	m, n, _ := newTestMeshReconciler(t)
	m.cfg.PodCIDRSource = PodCIDRsOfCalico
	own := meshNode(0, noise.PublicKey{})
	own.PodCIDRs = nil
	for i := range byte(20) {
		own.PodCIDRs = append(own.PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 64}), 26))
	}
	r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own, meshNode(1, noise.PublicKey{1})}})
	if len(n.pods) != 0 || !slices.Equal(n.routing.Sources, own.Addrs) || len(r.announcement.PodCIDRs) != 16 {
		t.Errorf("addresses of %v, sources %v, %d prefixes published", n.pods, n.routing.Sources, len(r.announcement.PodCIDRs))
	}
}

// TestPrefixThatAPIRejectsIsNotPublished: with it, the node would publish nothing at all.
func TestPrefixThatAPIRejectsIsNotPublished(t *testing.T) {
	m, _, _ := newTestMeshReconciler(t)
	own := meshNode(0, noise.PublicKey{})
	own.PodCIDRs = append(own.PodCIDRs, netip.MustParsePrefix("::ffff:10.244.0.0/120"))
	r := m.mustReconcile(t, reconcileInput{self: own, nodes: []mesh.Node{own}})
	if len(r.announcement.PodCIDRs) != 1 || r.announcement.PodCIDRs[0] != "10.244.0.0/24" || len(r.notes) == 0 {
		t.Errorf("published %v, notes %v, want 10.244.0.0/24 and a note", r.announcement.PodCIDRs, r.notes)
	}
}

func TestRoutesAreRecheckedOnlyAfterTunnelChanges(t *testing.T) {
	m, n, e := newTestMeshReconciler(t)
	l := reconcileInput{self: meshNode(0, noise.PublicKey{})}
	l.nodes = []mesh.Node{l.self}
	for _, c := range []struct {
		name   string
		change func()
		want   int
	}{
		{"first reconcile", func() {}, 2},
		{"no change", func() {}, 1},
		{"another program set the interface down", func() { n.pendingChanges = 1 }, 2},
		{"another engine", func() { e.setAbsent(false) }, 2},
		{"no change again", func() {}, 1},
	} {
		n.setRoutesCalls = 0
		c.change()
		m.mustReconcile(t, l)
		if n.setRoutesCalls != c.want {
			t.Errorf("%s: got %d times, want %d", c.name, n.setRoutesCalls, c.want)
		}
	}
}

func TestKeyChangesAfterPropagation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, e := newTestMeshReconciler(t)
		own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
		l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
		r := m.mustReconcile(t, l)
		synctest.Wait()
		if got := e.takeProbed(); len(got) != 1 {
			t.Error("no handshake with a peer that knows the last engine")
		}
		l.announced = m.mustReconcile(t, l).announcement
		first := l.announced.PublicKey
		l.spec.KeyGeneration = 2
		r = m.mustReconcile(t, l)
		if r.announcement.PublicKey != first || r.announcement.NextPublicKey == "" || r.requeueAfter != 0 {
			t.Fatalf("got %+v, want status.PublicKey %v, text in status.NextPublicKey, requeueAfter 0", r, first)
		}
		time.Sleep(time.Hour) // the API is unreachable
		if r = m.mustReconcile(t, l); r.announcement.PublicKey != first {
			t.Fatal("the key changed before it was published")
		}
		next := r.announcement.NextPublicKey
		l.announced = r.announcement
		if r = m.mustReconcile(t, l); r.announcement.PublicKey != first || r.requeueAfter != DefaultPropagation || len(r.notes) != 1 {
			t.Fatalf("got %+v, want status.PublicKey %v, requeueAfter %v, len(notes) 1", r, first, DefaultPropagation)
		}
		time.Sleep(r.requeueAfter)
		r = m.mustReconcile(t, l)
		if r.announcement.PublicKey != next || r.announcement.NextPublicKey != "" || r.status.KeyGeneration != 2 {
			t.Fatalf("got %+v, want status.PublicKey %v, status.NextPublicKey \"\", status.KeyGeneration 2", r, next)
		}
		synctest.Wait()
		if st, probed := e.now(), e.takeProbed(); st.PublicKey.Base64() != string(next) || e.saved.PrivateKey.Public() != st.PublicKey || len(probed) != 1 {
			t.Errorf("the engine has key %s, and probed %v", st.PublicKey, probed)
		}
		if names, err := os.ReadDir(m.cfg.KeyDir); err != nil || len(names) != 1 || names[0].Name() != "private-2.key" {
			t.Error(names, err)
		}
		m.stop()
	})
}

func TestAllowedIPsMoveWithPeersNextKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, e := newTestMeshReconciler(t)
		own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
		other.Agent.NextKey = noise.PublicKey{2}
		l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
		owner := func() noise.PublicKey {
			for _, p := range e.now().Peers {
				if len(p.AllowedIPs) > 0 {
					return p.PublicKey
				}
			}
			return noise.PublicKey{}
		}
		if r := m.mustReconcile(t, l); r.status.Peers != 1 || owner() != other.Agent.Key {
			t.Fatalf("%d peers, allowed IPs at %s", r.status.Peers, owner())
		}
		e.recordHandshake(noise.PublicKey{2})
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if owner() != (noise.PublicKey{2}) {
			t.Errorf("allowed IPs are at %s", owner())
		}
		m.mustReconcile(t, l) // the cluster does not have the change yet
		if owner() != (noise.PublicKey{2}) {
			t.Errorf("the next reconcile moves them back to %s", owner())
		}
		other.Agent.Key, other.Agent.NextKey = noise.PublicKey{2}, noise.PublicKey{}
		l.nodes[1] = other
		m.mustReconcile(t, l)
		if st := e.now(); len(st.Peers) != 1 || owner() != (noise.PublicKey{2}) {
			t.Errorf("got %+v", st)
		}
		m.stop()
	})
}

func TestRejectedKeyIsConfiguredAgain(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	l := reconcileInput{nodes: []mesh.Node{own, other}, self: own}
	m.mustReconcile(t, l)
	if err := m.keys.prepare(2); err != nil {
		t.Fatal(err)
	}
	e.setRejectsKeys(true)
	if err := m.switchKey(); !errors.Is(err, errKeyRejected) {
		t.Fatal(err)
	}
	e.setRejectsKeys(false)
	r := m.mustReconcile(t, l)
	if st := e.now(); st.PublicKey.Base64() != string(r.announcement.PublicKey) || len(st.Peers) != 1 || len(st.Peers[0].AllowedIPs) == 0 {
		t.Errorf("published key %s, engine has %+v", r.announcement.PublicKey, st)
	}
}

func TestCleartextAddsNoBlackholeBeforeSync(t *testing.T) {
	dir := t.TempDir()
	a, _, _ := newTestAgent(t, dir, nil)
	a.savePersisted(persistedState{
		Mode: mesh.ModeMesh, Routing: &host.Routing{Routes: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}},
		Mesh: &savedMesh{Generation: 1, Spec: v1alpha1.MeshSpec{Cleartext: v1alpha1.CleartextAlways}},
	})
	again, n, _ := newTestAgent(t, dir, nil)
	expect.NoError(t, again.restorePersisted())
	if n.routing == nil || !n.routing.Cleartext {
		t.Errorf("got %+v, want routing with cleartext", n)
	}
}

// rejectingEngine is an engine whose host has no free port.
type rejectingEngine struct {
	Engine
	rejects  bool
	attempts int // changes of the port
}

func (e *rejectingEngine) Configure(c config.Device) error {
	if c.ListenPort == nil {
		return e.Engine.Configure(c)
	}
	if e.attempts++; e.rejects {
		return errPortInUse
	}
	return e.Engine.Configure(c)
}

func TestKeepaliveReachesAllNodes(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own, first, second := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}), meshNode(2, noise.PublicKey{2})
	in := reconcileInput{self: own, nodes: []mesh.Node{own, first}}
	keepalives := func() (all []uint16) {
		m.mustReconcile(t, in)
		for _, p := range e.now().Peers {
			all = append(all, p.Keepalive)
		}
		return all
	}
	keepalives()
	in.settings.Keepalive = 7
	keepalives()
	in.nodes = append(in.nodes, second)
	if got := keepalives(); !slices.Equal(got, []uint16{7, 7}) {
		t.Errorf("keepalives %v", got)
	}
	in.settings.Keepalive = 0
	if got := keepalives(); !slices.Equal(got, []uint16{0, 0}) {
		t.Errorf("keepalives %v without the setting", got)
	}
}
