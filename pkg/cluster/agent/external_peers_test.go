// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// laptop returns a RopewalkPeer.
func laptop() *v1alpha1.RopewalkPeer {
	return &v1alpha1.RopewalkPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "laptop", UID: "laptop", Generation: 1},
		Spec: v1alpha1.PeerSpec{
			PublicKey: v1alpha1.PublicKey(noise.PublicKey{9}.Base64()), AllowedIPs: []v1alpha1.PeerPrefix{"10.9.0.2/32"}, PersistentKeepalive: 25,
		},
	}
}

func TestInvalidRopewalkPeersAreFound(t *testing.T) {
	for _, c := range []struct {
		name    string
		edit    func(*v1alpha1.PeerSpec)
		invalid bool
		at      string // Endpoint, or EndpointName
	}{
		{"without an endpoint", func(*v1alpha1.PeerSpec) {}, false, ""},
		{"IPv4", func(s *v1alpha1.PeerSpec) { s.Endpoint = "192.0.2.1:1" }, false, "192.0.2.1:1"},
		{"IPv6", func(s *v1alpha1.PeerSpec) { s.Endpoint = "[2001:db8::1]:65535" }, false, "[2001:db8::1]:65535"},
		{"IPv4 as IPv6", func(s *v1alpha1.PeerSpec) { s.Endpoint = "[::ffff:192.0.2.1]:1" }, false, "192.0.2.1:1"},
		{"a host name", func(s *v1alpha1.PeerSpec) { s.Endpoint = "VPN.Example.org:51820" }, false, "vpn.example.org:51820"},
		{"no port", func(s *v1alpha1.PeerSpec) { s.Endpoint = "192.0.2.1" }, true, ""},
		{"port 0", func(s *v1alpha1.PeerSpec) { s.Endpoint = "192.0.2.1:0" }, true, ""},
		{"a large port", func(s *v1alpha1.PeerSpec) { s.Endpoint = "192.0.2.1:65536" }, true, ""},
		{"a zone", func(s *v1alpha1.PeerSpec) { s.Endpoint = "[fe80::1%eth0]:1" }, true, ""},
		{"loopback", func(s *v1alpha1.PeerSpec) { s.Endpoint = "127.0.0.1:1" }, true, ""},
		{"no IPv4 address", func(s *v1alpha1.PeerSpec) { s.Endpoint = "192.0.2.300:1" }, true, ""},
		{"no host name", func(s *v1alpha1.PeerSpec) { s.Endpoint = "a b:1" }, true, ""},
		{"no key", func(s *v1alpha1.PeerSpec) { s.PublicKey = "key" }, true, ""},
		{"the zero key", func(s *v1alpha1.PeerSpec) { s.PublicKey = v1alpha1.PublicKey(noise.PublicKey{}.Base64()) }, true, ""},
		{"no prefix", func(s *v1alpha1.PeerSpec) { s.AllowedIPs = []v1alpha1.PeerPrefix{"10.9.0.2"} }, true, ""},
		{"many prefixes", func(s *v1alpha1.PeerSpec) { s.AllowedIPs = make([]v1alpha1.PeerPrefix, 65) }, true, ""},
		{"keepalive", func(s *v1alpha1.PeerSpec) { s.PersistentKeepalive = 65536 }, true, ""},
		{"a policy", func(s *v1alpha1.PeerSpec) { s.PostQuantum = v1alpha1.PostQuantumRequired }, false, ""},
		{"an unknown policy", func(s *v1alpha1.PeerSpec) { s.PostQuantum = "off" }, true, ""},
		{"negative keepalive", func(s *v1alpha1.PeerSpec) { s.PersistentKeepalive = -1 }, true, ""},
	} {
		rp := laptop()
		c.edit(&rp.Spec)
		p := toExternal(rp)
		at := p.EndpointName
		if p.Endpoint.IsValid() {
			at = p.Endpoint.String()
		}
		if (p.Invalid != "") != c.invalid || at != c.at {
			t.Errorf("%s: got %+v", c.name, p)
		}
	}
}

func FuzzHostileRopewalkPeer(f *testing.F) {
	f.Add("laptop", "key", "10.9.0.2/32", "vpn.example.org:51820", int32(25))
	f.Add("x", strings.Repeat("A", 43)+"=", "::ffff:10.244.1.0/120", "[::ffff:192.0.2.1%eth0]:0", int32(-1))
	f.Fuzz(func(t *testing.T, name, key, prefix, endpoint string, keepalive int32) {
		rp := laptop()
		rp.Name, rp.Spec.PersistentKeepalive = name, keepalive
		rp.Spec.AllowedIPs, rp.Spec.Endpoint = []v1alpha1.PeerPrefix{v1alpha1.PeerPrefix(prefix)}, v1alpha1.PeerEndpoint(endpoint)
		if key != "" {
			rp.Spec.PublicKey = v1alpha1.PublicKey(key)
		}
		p := toExternal(rp)
		p.Selected = true
		nodes := []mesh.Node{meshNode(0, noise.PublicKey{7}), meshNode(1, noise.PublicKey{8})}
		plan, err := mesh.Tunnel("a", nodes, mesh.TunnelConfig{External: []mesh.ExternalPeer{p}})
		if err != nil {
			t.Fatal(err)
		}
		if config.CheckEndpointName(p.EndpointName) != nil {
			t.Errorf("no device accepts the host name %q", p.EndpointName)
		}
		for _, peer := range plan.Peers {
			for _, a := range peer.AllowedIPs {
				if peer.IsExternal() && (!a.IsValid() || a != a.Masked() || a.Overlaps(nodes[0].PodCIDRs[0]) || a.Overlaps(nodes[1].PodCIDRs[0]) || a.Contains(nodes[1].Addrs[0])) {
					t.Errorf("accepted %s", a)
				}
			}
		}
	})
}

func TestNodeSelectorNeedsAllLabels(t *testing.T) {
	have := map[string]string{"zone": "a", "gateway": ""}
	with := func(all map[string]v1alpha1.LabelValue) v1alpha1.NodeSelector {
		return v1alpha1.NodeSelector{MatchLabels: all}
	}
	for _, c := range []struct {
		selector v1alpha1.NodeSelector
		want     bool
	}{
		{v1alpha1.NodeSelector{}, true},
		{with(map[string]v1alpha1.LabelValue{"zone": "a"}), true},
		{with(map[string]v1alpha1.LabelValue{"zone": "a", "gateway": ""}), true},
		{with(map[string]v1alpha1.LabelValue{"zone": "b"}), false},
		{with(map[string]v1alpha1.LabelValue{"zone": "a", "other": ""}), false},
		{with(map[string]v1alpha1.LabelValue{"zone": ""}), false},
		{v1alpha1.NodeSelector{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "zone", Operator: "NotIn", Values: []v1alpha1.LabelValue{"b", "c"}}}}, true},
		{v1alpha1.NodeSelector{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "gateway", Operator: "DoesNotExist"}}}, false},
	} {
		selector, err := c.selector.Selector()
		if got := err == nil && selector.Matches(labels.Set(have)); got != c.want {
			t.Errorf("%v: got %v, %v", c.selector, got, err)
		}
	}
}

func TestOnlyOwnNodeKeepsLabels(t *testing.T) {
	own, other := parseNode(t, aNode), parseNode(t, aNode)
	own.Labels, other.Labels = map[string]string{"a": "1", labelOS: linux}, map[string]string{"a": "1", labelOS: linux}
	if _, err := trimOwnNode(own); err != nil || own.Labels["a"] != "1" || own.platform() != linux {
		t.Errorf("the own node has the labels %v, platform %q, %v", own.Labels, own.platform(), err)
	}
	if _, err := trimObject(other); err != nil || other.Labels != nil || other.platform() != linux {
		t.Errorf("another node has the labels %v, platform %q, %v", other.Labels, other.platform(), err)
	}
}

func TestOwnLabelsAreRelevant(t *testing.T) {
	before, after := parseNode(t, aNode), parseNode(t, aNode)
	before.Labels, after.Labels = map[string]string{"a": "1"}, map[string]string{"a": "2"}
	if !isRelevantUpdate(before, after, "n1") || isRelevantUpdate(before, after, "other") {
		t.Error("a changed label must be relevant to the node itself only")
	}
}

// TestExternalPeersStayWhileUnknown: an agent restarts while it can read no RopewalkPeers. Then it can, and there are none any more.
func TestExternalPeersStayWhileUnknown(t *testing.T) {
	own, other := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1})
	first, _, _ := newTestMeshReconciler(t)
	p := toExternal(laptop())
	p.Selected = true
	in := reconcileInput{nodes: []mesh.Node{own, other}, self: own, external: []mesh.ExternalPeer{p}, externalKnown: true}
	saved := first.mustReconcile(t, in).saved
	m, n, e := newTestMeshReconciler(t)
	m.external = newMeshReconciler(m.cfg, saved, nil, nil).external
	in.external, in.externalKnown = nil, false
	r := m.mustReconcile(t, in)
	if peers := e.now().Peers; len(peers) != 2 || r.externalPeers != 1 || r.external != nil || r.status.Peers != 1 {
		t.Errorf("got %+v, result %+v", peers, r)
	}
	if !slices.Contains(n.routing.Routes, p.AllowedIPs[0]) {
		t.Errorf("got routes %v", n.routing.Routes)
	}
	in.externalKnown = true
	r = m.mustReconcile(t, in)
	if peers := e.now().Peers; len(peers) != 1 || r.externalPeers != 0 || slices.Contains(n.routing.Routes, p.AllowedIPs[0]) {
		t.Errorf("got %+v, routes %v", peers, n.routing.Routes)
	}
}

// TestPeerWithInsideAddressIsResolvedAgain: its name has an address of its own allowed IPs.
func TestPeerWithInsideAddressIsResolvedAgain(t *testing.T) {
	m, _, _ := newTestMeshReconciler(t)
	own := meshNode(0, noise.PublicKey{})
	p := toExternal(laptop())
	p.Selected, p.EndpointName = true, "vpn.example.org:51820"
	m.resolver.known[p.EndpointName] = netip.AddrPortFrom(p.AllowedIPs[0].Addr(), 51820)
	defer m.resolver.stop()
	m.mustReconcile(t, reconcileInput{nodes: []mesh.Node{own}, self: own, external: []mesh.ExternalPeer{p}, externalKnown: true})
	if m.resolver.running[p.EndpointName] == nil {
		t.Error("no lookup waits")
	}
}

func TestExternalPeerKeepsKeepaliveWhenKeyChanges(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	own := meshNode(0, noise.PublicKey{})
	p := toExternal(laptop())
	p.Selected = true
	m.mustReconcile(t, reconcileInput{nodes: []mesh.Node{own}, self: own, external: []mesh.ExternalPeer{p}, externalKnown: true})
	if err := m.keys.prepare(2); err != nil {
		t.Fatal(err)
	}
	if err := m.switchKey(); err != nil {
		t.Fatal(err)
	}
	m.handshakes.stop()
	if st := e.now().Peers; len(st) != 1 || st[0].Keepalive != 25 || st[0].Name != "laptop" {
		t.Errorf("got %+v", st)
	}
}

// TestPostQuantumOfPeerPrecedesMesh: an engine that does not know exchanges has no peer that requires them, and other peers without their policy.
func TestPostQuantumOfPeerPrecedesMesh(t *testing.T) {
	for _, c := range []struct {
		engine *config.PostQuantumReport
		policy v1alpha1.PostQuantum
		peers  int
		sent   config.PostQuantum
	}{
		{&config.PostQuantumReport{}, v1alpha1.PostQuantumRequired, 1, config.PostQuantumRequired},
		{&config.PostQuantumReport{}, v1alpha1.PostQuantumNever, 1, config.PostQuantumOff},
		{&config.PostQuantumReport{}, "", 1, config.PostQuantumDefault},
		{nil, v1alpha1.PostQuantumRequired, 0, config.PostQuantumDefault},
		{nil, v1alpha1.PostQuantumAuto, 1, config.PostQuantumDefault},
	} {
		m, _, e := newTestMeshReconciler(t)
		e.quantum = c.engine
		rp := laptop()
		rp.Spec.PostQuantum = c.policy
		p := toExternal(rp)
		p.Selected = true
		own := meshNode(0, noise.PublicKey{})
		in := reconcileInput{nodes: []mesh.Node{own}, self: own, external: []mesh.ExternalPeer{p}, externalKnown: true}
		for range 2 { // the first configures the whole device
			r := m.mustReconcile(t, in)
			var sent, saved config.PostQuantum
			if st := e.now().Peers; len(st) == 1 && st[0].PostQuantum.Own {
				sent = st[0].PostQuantum.Policy
			}
			if len(e.saved.Peers) == 1 && e.saved.Peers[0].PostQuantum != nil {
				saved = *e.saved.Peers[0].PostQuantum
			}
			if n := len(e.now().Peers); n != c.peers || len(e.saved.Peers) != c.peers || sent != c.sent || saved != c.sent {
				t.Errorf("%+v: %d peers with %v, saved %+v", c, n, sent, e.saved.Peers)
			}
			if noted := strings.Contains(strings.Join(r.notes, " "), "laptop"); noted != (c.peers == 0) {
				t.Errorf("%+v: notes %q", c, r.notes)
			}
		}
	}
}

// TestAbsentEngineKeepsPoliciesOfPeers: the next engine starts from the file, which an agent writes that may have started itself meanwhile.
func TestAbsentEngineKeepsPoliciesOfPeers(t *testing.T) {
	for _, c := range []struct {
		engine *config.PostQuantumReport // the last that answered
		policy v1alpha1.PostQuantum
		mesh   config.PostQuantum
		peers  int
		saved  config.PostQuantum
	}{
		{&config.PostQuantumReport{}, v1alpha1.PostQuantumRequired, config.PostQuantumAuto, 1, config.PostQuantumRequired},
		{&config.PostQuantumReport{}, v1alpha1.PostQuantumNever, config.PostQuantumRequired, 1, config.PostQuantumOff},
		{nil, v1alpha1.PostQuantumRequired, config.PostQuantumAuto, 0, config.PostQuantumDefault},
		{nil, v1alpha1.PostQuantumAuto, config.PostQuantumAuto, 1, config.PostQuantumDefault},
	} {
		m, _, e := newTestMeshReconciler(t)
		e.quantum = c.engine
		rp := laptop()
		rp.Spec.PostQuantum = c.policy
		p := toExternal(rp)
		p.Selected = true
		own := meshNode(0, noise.PublicKey{})
		in := reconcileInput{
			nodes: []mesh.Node{own}, self: own, external: []mesh.ExternalPeer{p}, externalKnown: true, intent: &intent{cleartext: v1alpha1.CleartextAuto, postQuantum: c.mesh},
		}
		saved := m.mustReconcile(t, in).saved
		e.setAbsent(true)
		for _, restarted := range []bool{false, true} {
			if restarted {
				m.stop()
				m = newMeshReconciler(m.cfg, saved, m.apiAddrs, m.trigger)
				t.Cleanup(m.stop)
			}
			e.saved = config.Device{}
			r, err := m.reconcile(t.Context(), in)
			var kept config.PostQuantum
			if len(e.saved.Peers) == 1 && e.saved.Peers[0].PostQuantum != nil {
				kept = *e.saved.Peers[0].PostQuantum
			}
			if !errors.Is(err, engine.ErrAbsent) || len(e.saved.Peers) != c.peers || kept != c.saved || (e.saved.PostQuantum != nil) != (c.engine != nil) {
				t.Errorf("%+v, restarted %v: %v, saved %+v", c, restarted, err, e.saved)
			}
			if noted := strings.Contains(strings.Join(r.notes, " "), "laptop"); noted != (c.peers == 0) {
				t.Errorf("%+v, restarted %v: notes %q", c, restarted, r.notes)
			}
		}
	}
}

// TestHandAddedPeerIsRemovedAndLogged: the agent owns the tunnel's peers. A node or RopewalkPeer that goes is no such peer.
func TestHandAddedPeerIsRemovedAndLogged(t *testing.T) {
	m, _, e := newTestMeshReconciler(t)
	var log bytes.Buffer
	m.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	own := meshNode(0, noise.PublicKey{})
	p := toExternal(laptop())
	p.Selected = true
	in := reconcileInput{nodes: []mesh.Node{own}, self: own, external: []mesh.ExternalPeer{p}, externalKnown: true}
	m.mustReconcile(t, in)
	const removed = "another program added a peer that is neither a node nor a RopewalkPeer"
	in.external = nil
	m.mustReconcile(t, in)
	if strings.Contains(log.String(), removed) {
		t.Error("the removal of a RopewalkPeer was logged as that of another peer")
	}
	if err := e.Configure(config.Device{Peers: []config.Peer{{PublicKey: noise.PublicKey{66}}}}); err != nil {
		t.Fatal(err)
	}
	r := m.mustReconcile(t, in)
	if n := len(e.now().Peers); n != 0 || r.changes != 1 || strings.Count(log.String(), removed) != 1 {
		t.Errorf("%d peers, %d changes, log %s", n, r.changes, log.String())
	}
}

func TestMissingCRDLeavesExternalPeersUnknown(t *testing.T) {
	asked := make(chan struct{}, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	c, err := newClient(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	e, err := newExternalPeers(c, slog.New(slog.DiscardHandler), func() {})
	if err != nil {
		t.Fatal(err)
	}
	e.follow(t.Context(), false)
	<-asked
	if all, known := e.of(&node{}); known || all != nil {
		t.Errorf("got %v, known %v", all, known)
	}
}

// put stores a RopewalkPeer, as an administrator would.
func (a *fakeAPI) putPeer(t *testing.T, rp *v1alpha1.RopewalkPeer) {
	t.Helper()
	spec, err := json.Marshal(rp.Spec)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := a.external.get(rp.Name)
	o.ObjectMeta, o.Spec = rp.ObjectMeta, spec
	a.external.put(o)
}

// acceptedIn returns the Accepted condition of a RopewalkPeer in the API.
func (a *fakeAPI) acceptedIn(t *testing.T, name string) (c metav1.Condition) {
	t.Helper()
	o, _ := a.external.get(name)
	var st v1alpha1.PeerStatus
	if o.Status != nil {
		if err := json.Unmarshal(o.Status, &st); err != nil {
			t.Fatal(err)
		}
	}
	if len(st.Conditions) > 0 {
		c = st.Conditions[0]
	}
	return c
}

func TestAgentConfiguresRopewalkPeersOfAPI(t *testing.T) {
	a, api, network := newSyncedAgent(t, nil, ownedByNodeA())
	rp, elsewhere := laptop(), laptop()
	elsewhere.Name, elsewhere.UID, elsewhere.Spec.PublicKey = "elsewhere", "elsewhere", v1alpha1.PublicKey(noise.PublicKey{10}.Base64())
	elsewhere.Spec.AllowedIPs, elsewhere.Spec.NodeSelector = []v1alpha1.PeerPrefix{"10.9.0.3/32"}, v1alpha1.NodeSelector{MatchLabels: map[string]v1alpha1.LabelValue{"zone": "b"}}
	api.putPeer(t, rp)
	api.putPeer(t, elsewhere)
	follow(t, a)
	n, rn, _ := a.cluster.self()
	res, err := a.reconcileMode(t.Context(), n, rn, clusterChanged)
	if err != nil || res.externalPeers != 1 || len(res.external.refused) != 0 {
		t.Fatalf("got %+v, %v", res, err)
	}
	if want := netip.MustParsePrefix("10.9.0.2/32"); !slices.Equal(network.routing.Routes, []netip.Prefix{want}) {
		t.Errorf("got routes %v", network.routing.Routes)
	}
	a.stats.update(&res, nil)
	if a.stats.ExternalPeers.Load() != 1 || a.stats.RefusedPeers.Load() != 0 {
		t.Error("the metrics do not count it")
	}
}

// follow waits until an agent has all RopewalkPeers.
func follow(t *testing.T, a *Agent) {
	t.Helper()
	a.cluster.external.follow(t.Context(), false)
	<-a.cluster.external.HasSyncedChecker().Done()
}
