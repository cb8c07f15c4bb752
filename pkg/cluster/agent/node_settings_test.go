// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// poolConfig returns a RopewalkConfig of the nodes with the label pool=NAME.
func poolConfig(name string, edit func(*v1alpha1.ConfigSpec)) *v1alpha1.RopewalkConfig {
	rc := &v1alpha1.RopewalkConfig{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("config " + name), Generation: 1}}
	rc.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{"pool": v1alpha1.LabelValue(name)}
	if edit != nil {
		edit(&rc.Spec)
	}
	return rc
}

// putConfig stores a RopewalkConfig, as an administrator would.
func (a *fakeAPI) putConfig(t *testing.T, rc *v1alpha1.RopewalkConfig) {
	t.Helper()
	spec, err := json.Marshal(rc.Spec)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := a.configs.get(rc.Name)
	o.ObjectMeta, o.Spec = rc.ObjectMeta, spec
	a.configs.put(o)
}

// pooledAgent is an agent of the node "a" with the RopewalkConfigs of its API.
type pooledAgent struct {
	*Agent
	t       *testing.T
	network *fakeNetwork
	engine  *fakeEngine
}

func newPooledAgent(t *testing.T, all ...*v1alpha1.RopewalkConfig) (*pooledAgent, *fakeAPI) {
	t.Helper()
	p := &pooledAgent{t: t, engine: &fakeEngine{}}
	a, api, network := newSyncedAgent(t, func(c *Config) { c.Engine = p.engine }, ownedByNodeA())
	p.Agent, p.network = a, network
	for _, rc := range all {
		api.putConfig(t, rc)
	}
	go a.cluster.configs.RunWithContext(t.Context())
	<-a.cluster.configs.HasSyncedChecker().Done()
	return p, api
}

// label gives the node a label pool.
func (p *pooledAgent) label(pool string) {
	n, _ := p.cluster.node("a")
	n.Labels = map[string]string{"pool": pool}
}

// edit changes a RopewalkConfig as the informer has it.
func (p *pooledAgent) edit(name string, change func(*v1alpha1.ConfigSpec)) {
	o, _, _ := p.cluster.configs.GetStore().GetByKey(name)
	rc := o.(*v1alpha1.RopewalkConfig).DeepCopy()
	rc.Generation++
	change(&rc.Spec)
	if err := p.cluster.configs.GetStore().Update(rc); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pooledAgent) reconciles(t trigger) result {
	p.t.Helper()
	n, rn := p.cluster.node("a")
	res, err := p.reconcileMode(p.t.Context(), n, rn, t)
	if err != nil {
		p.t.Fatal(err)
	}
	return res
}

// stateOf returns a config's name and state in a result.
func stateOf(r *result) string {
	if c := r.status.Config; c != nil {
		return c.Name + " " + string(c.State)
	}
	return ""
}

func TestLabelsSelectSettings(t *testing.T) {
	p, _ := newPooledAgent(t,
		poolConfig("jumbo", func(s *v1alpha1.ConfigSpec) { s.MTU, s.Port = 8900, 51900 }),
		poolConfig("quiet", func(s *v1alpha1.ConfigSpec) { s.Underlay, s.PersistentKeepalive = "udp", 25 }),
	)
	for _, c := range []struct {
		pool     string
		mtu      int
		endpoint v1alpha1.Endpoint
		state    string
	}{
		{"", 1440, "192.0.2.1:51820", ""},
		{"jumbo", 8900, "192.0.2.1:51900", "jumbo Applied"},
		{"quiet", 1440, "192.0.2.1:51820", "quiet Applied"},
		{"other", 1440, "192.0.2.1:51820", ""},
	} {
		p.label(c.pool)
		r := p.reconciles(clusterChanged)
		if p.network.mtu != c.mtu || r.status.Endpoints[0] != c.endpoint || stateOf(&r) != c.state {
			t.Errorf("pool %q: mtu %d, %+v", c.pool, p.network.mtu, r.status)
		}
	}
	var underlays []config.UnderlayMode
	for _, change := range p.engine.configuredSince(1) {
		if change.Underlay != nil {
			underlays = append(underlays, *change.Underlay)
		}
	}
	if !slices.Equal(underlays, []config.UnderlayMode{config.UnderlayUDP, config.UnderlayAuto}) {
		t.Errorf("underlays %v", underlays)
	}
}

func TestNodeSpecPrecedesConfig(t *testing.T) {
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.MTU, s.Port = 8900, 51900 }))
	p.label("a")
	n, rn := p.cluster.node("a")
	rn.Spec.MTU = 1300
	r, err := p.reconcileMode(t.Context(), n, rn, clusterChanged)
	if err != nil || p.network.mtu != 1300 || r.status.Endpoints[0] != "192.0.2.1:51900" {
		t.Errorf("mtu %d, %+v, %v", p.network.mtu, r.status, err)
	}
}

func TestRefusedSettingsLeaveLastOnes(t *testing.T) {
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.MTU = 8900 }))
	p.label("a")
	p.reconciles(clusterChanged)
	n, _ := p.cluster.node("a")
	n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "2001:db8:1::/64")
	for _, c := range []struct {
		what   string
		edit   func(*v1alpha1.ConfigSpec)
		reason string
	}{
		{"mtu", func(s *v1alpha1.ConfigSpec) { s.MTU = 1279 }, "mtu is 1279"},
	} {
		p.edit("a", c.edit)
		for range 2 {
			r := p.reconciles(periodicResync)
			if stateOf(&r) != "a Refused" || !r.configRefused || p.network.mtu != 8900 || len(r.notes) == 0 || !strings.Contains(r.notes[len(r.notes)-1], c.reason) {
				t.Errorf("%s: %s, mtu %d, notes %v", c.what, stateOf(&r), p.network.mtu, r.notes)
			}
		}
	}
	p.edit("a", func(s *v1alpha1.ConfigSpec) { s.MTU = 1300 }) // a new generation is tried
	if r := p.reconciles(clusterChanged); stateOf(&r) != "a Applied" || p.network.mtu != 1300 {
		t.Errorf("%s, mtu %d", stateOf(&r), p.network.mtu)
	}
}

func TestSmallMTUIsRefusedWhereTunnelCarriesIPv6(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("2001:db8:1::/64")
	for _, c := range []struct {
		mtu          int
		pods         netip.Prefix
		addr         string
		encryptNodes bool
		ok           bool
	}{
		{1279, four, "192.0.2.1", true, true},
		{1279, four, "2001:db8::1", false, true},
		{1279, four, "2001:db8::1", true, false},
		{1279, six, "192.0.2.1", false, false},
		{1280, six, "2001:db8::1", true, true},
		{0, six, "2001:db8::1", true, true},
	} {
		cfg := Config{MeshConfig: MeshConfig{NodeEncryption: NodeEncryption{Enabled: c.encryptNodes}}}
		own := mesh.Node{PodCIDRs: []netip.Prefix{c.pods}, Addrs: []netip.Addr{netip.MustParseAddr(c.addr)}}
		if err := cfg.checkSettings(mesh.Settings{MTU: c.mtu}, own); (err == nil) != c.ok {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

// TestRefusedFlagsAreReported deletes a RopewalkConfig while the port of the flags is in use.
func TestRefusedFlagsAreReported(t *testing.T) {
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.Port = 51900 }))
	p.label("a")
	p.reconciles(clusterChanged)
	m := p.runningMesh()
	e := &rejectingEngine{Engine: m.engine, rejects: true}
	m.engine = e
	p.label("none")
	for _, trigger := range []trigger{clusterChanged, clusterChanged, periodicResync} {
		e.attempts = 0
		r := p.reconciles(trigger)
		if !r.configRefused || len(r.notes) == 0 || !strings.Contains(r.notes[len(r.notes)-1], "without a RopewalkConfig") || r.status.Endpoints[0] != "192.0.2.1:51900" {
			t.Errorf("notes %v, endpoints %v", r.notes, r.status.Endpoints)
		}
	}
	p.reconciles(clusterChanged)
	if e.attempts != 1 { // that of the last resync
		t.Errorf("%d attempts to move the tunnel to a port that was refused", e.attempts)
	}
	e.rejects = false
	if r := p.reconciles(periodicResync); r.configRefused || r.status.Endpoints[0] != "192.0.2.1:51820" {
		t.Errorf("refused: %v, endpoints %v", r.configRefused, r.status.Endpoints)
	}
}

// TestFailureOfAllSettingsRefusesNone has an engine that is absent for a moment.
func TestFailureOfAllSettingsRefusesNone(t *testing.T) {
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.MTU = 1300 }))
	p.label("a")
	p.engine.setAbsent(true)
	n, rn := p.cluster.node("a")
	if r, err := p.reconcileMode(t.Context(), n, rn, clusterChanged); err == nil || stateOf(&r) != "a Pending" {
		t.Fatalf("%s, %v", stateOf(&r), err)
	}
	p.engine.setAbsent(false)
	if r := p.reconciles(clusterChanged); stateOf(&r) != "a Applied" || p.network.mtu != 1300 {
		t.Errorf("%s, mtu %d", stateOf(&r), p.network.mtu)
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

func TestBusyPortIsTriedAtResync(t *testing.T) {
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.Port = 51900 }))
	p.reconciles(clusterChanged)
	m := p.runningMesh()
	e := &rejectingEngine{Engine: m.engine, rejects: true}
	m.engine = e
	p.label("a")
	for _, c := range []struct {
		t       trigger
		rejects bool
		state   string
		port    v1alpha1.Endpoint
	}{
		{clusterChanged, true, "a Refused", "192.0.2.1:51820"},
		{clusterChanged, false, "a Refused", "192.0.2.1:51820"}, // not asked again
		{periodicResync, true, "a Refused", "192.0.2.1:51820"},
		{periodicResync, false, "a Applied", "192.0.2.1:51900"},
		{clusterChanged, false, "a Applied", "192.0.2.1:51900"},
	} {
		e.rejects = c.rejects
		if r := p.reconciles(c.t); stateOf(&r) != c.state || r.status.Endpoints[0] != c.port {
			t.Errorf("%+v: got %s, %+v", c, stateOf(&r), r.status.Endpoints)
		}
	}
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

// TestSettingsStayWhileConfigsAreUnknown has an agent restart while it can read nothing.
func TestSettingsStayWhileConfigsAreUnknown(t *testing.T) {
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.MTU = 8900 }))
	p.label("a")
	r := p.reconciles(clusterChanged)
	p.savePersisted(persistedState{Node: "node a", Name: "a", Mode: mesh.ModeMesh, Config: p.followed, Routing: r.routing, Tunnel: r.saved})
	a, n, _ := newTestAgent(t, p.cfg.KeyDir, nil)
	expect.NoError(t, a.restorePersisted())
	if n.mtu != 8900 {
		t.Errorf("mtu %d", n.mtu)
	}
	c := a.chooseConfig(&node{}, v1alpha1.NodeSpec{}, clusterChanged)
	if c.applied == nil || c.applied.Settings.MTU != 8900 {
		t.Errorf("got %+v", c.applied)
	}
}

// TestUnlistedConfigsDoNotBlockSync has API servers that do not list RopewalkConfigs.
func TestUnlistedConfigsDoNotBlockSync(t *testing.T) {
	for what, c := range map[string]struct {
		code     int // 0: no answer
		patience time.Duration
	}{
		"no CRD": {http.StatusNotFound, time.Hour}, "no right": {http.StatusForbidden, time.Hour}, "an error": {http.StatusInternalServerError, time.Nanosecond},
		"no answer": {0, time.Nanosecond},
	} {
		t.Run(what, func(t *testing.T) {
			api := newFakeAPI()
			expect.NoError(t, api.addNode("a", netip.MustParseAddr("192.0.2.1"), netip.MustParsePrefix("10.244.1.0/24")))
			others := api.handler()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case !strings.HasSuffix(r.URL.Path, v1alpha1.ConfigResource):
					others.ServeHTTP(w, r)
				case c.code == 0:
					<-r.Context().Done()
				default:
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(c.code)
					_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, strings.ReplaceAll(http.StatusText(c.code), " ", ""), c.code)
				}
			}))
			t.Cleanup(s.Close)
			a, err := New(Config{Node: "a", API: &rest.Config{Host: s.URL}, Log: slog.New(slog.DiscardHandler), KeyDir: t.TempDir()})
			expect.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel) // before the server waits for its clients
			a.cluster.configs.patience = c.patience
			a.cluster.start(ctx)
			go a.triggerWhenSynced(ctx)
			expect.Eventually(t, "the whole cluster is known", a.cluster.synced)
			expect.Eventually(t, "a reconcile is requested", func() bool { return a.queue.Len() > 0 })
			if a.cluster.configs.HasSynced() {
				t.Error("the RopewalkConfigs are known")
			}
		})
	}
}

func TestEqualPrioritiesAreReported(t *testing.T) {
	everywhere := poolConfig("b", func(s *v1alpha1.ConfigSpec) { s.NodeSelector.MatchLabels, s.MTU = nil, 1300 })
	everywhere.CreationTimestamp = metav1.Unix(2, 0)
	p, _ := newPooledAgent(t, poolConfig("a", func(s *v1alpha1.ConfigSpec) { s.MTU = 8900 }), everywhere)
	p.label("a")
	r := p.reconciles(clusterChanged)
	if stateOf(&r) != "a Applied" || p.network.mtu != 8900 || r.configRivals != 1 || !strings.Contains(r.clusterNote, "a, not b") {
		t.Errorf("%s, %d rivals, note %q", stateOf(&r), r.configRivals, r.clusterNote)
	}
	p.edit("b", func(s *v1alpha1.ConfigSpec) { s.Priority = 1 })
	if r = p.reconciles(clusterChanged); stateOf(&r) != "b Applied" || p.network.mtu != 1300 || r.configRivals != 0 || strings.Contains(r.clusterNote, "not") {
		t.Errorf("%s, %d rivals, note %q", stateOf(&r), r.configRivals, r.clusterNote)
	}
}

func FuzzHostileRopewalkConfig(f *testing.F) {
	f.Add("pool", "a", "In", int32(51820), int32(1400), "udp")
	f.Add("a=b", "\x00", "", int32(-1), int32(1<<30), "tcp")
	f.Fuzz(func(t *testing.T, key, value, operator string, port, mtu int32, underlay string) {
		rc := poolConfig("a", func(s *v1alpha1.ConfigSpec) {
			s.Port, s.MTU, s.PersistentKeepalive = port, mtu, port
			s.Underlay = v1alpha1.Underlay(underlay)
			s.NodeSelector.MatchExpressions = []v1alpha1.NodeSelectorRequirement{
				{Key: key, Operator: metav1.LabelSelectorOperator(operator), Values: []v1alpha1.LabelValue{v1alpha1.LabelValue(value)}},
			}
		})
		p := parseConfig(rc)
		chosen, _ := chooseConfig([]parsedConfig{p}, map[string]string{"pool": "a", key: value})
		if chosen == nil {
			return
		}
		s := chosen.Settings
		if p.invalid != "" || int32(s.Port) != port || s.MTU < 0 || s.MTU > 65535 {
			t.Errorf("chosen: %+v", s)
		}
	})
}
