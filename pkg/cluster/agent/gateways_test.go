// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// homeGateways returns the input of a gateway of home, which has another gateway there, and a node that is none.
func homeGateways() reconcileInput {
	own, other, ordinary := meshNode(0, noise.PublicKey{9}), meshNode(1, noise.PublicKey{1}), meshNode(2, noise.PublicKey{2})
	for _, g := range []*mesh.Node{&own, &other} {
		g.GatewayOf, g.Agent.Location, g.Agent.Forwards = "home", "home", true
	}
	ordinary.Agent.Location = "home"
	return reconcileInput{nodes: []mesh.Node{own, other, ordinary}, self: own, spec: v1alpha1.NodeSpec{GatewayOf: "home"}, location: "elsewhere"}
}

// receive adds to the bytes received from a peer.
func (e *fakeEngine) receive(key noise.PublicKey, bytes uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.status.Peers {
		if e.status.Peers[i].PublicKey == key {
			e.status.Peers[i].RxBytes += bytes
		}
	}
}

func TestGatewayPublishesGatewaysThatAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMeshReconciler(t)
		var triggered atomic.Int32
		m.trigger = func() { triggered.Add(1) }
		in := homeGateways()
		reports := func(want string, triggers int32) {
			t.Helper()
			synctest.Wait()
			r := m.mustReconcile(t, in)
			synctest.Wait()
			if st := r.status; st.Location != "home" || !st.Gateway.Forwards || strings.Join(st.Gateway.Unreachable, " ") != want || triggered.Load() != triggers {
				t.Errorf("got location %s, gateway %+v, %d triggers, want %q unreachable, %d triggers", st.Location, st.Gateway, triggered.Load(), want, triggers)
			}
		}
		reports("", 0)
		for range 5 {
			time.Sleep(5 * time.Second)
			engine().receive(noise.PublicKey{1}, 32)
			reports("", 0)
		}
		time.Sleep(13 * time.Second)
		reports("b", 1)
		for range 8 {
			time.Sleep(5 * time.Second)
			engine().receive(noise.PublicKey{1}, 32)
		}
		reports("", 2)

		// A node that is no gateway any more reports nothing.
		time.Sleep(13 * time.Second)
		reports("b", 3)
		in.spec.GatewayOf, in.nodes[0].GatewayOf = "", ""
		if r := m.mustReconcile(t, in); r.status.Gateway != nil || r.status.Location != "elsewhere" || len(m.unreachableGateways()) > 0 {
			t.Errorf("got %+v", r.status)
		}
	})
}

func TestGatewaysOfLocationKeepTheirKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMeshReconciler(t)
		in := homeGateways()
		keepalives := func(gateway, ordinary uint16) {
			t.Helper()
			m.mustReconcile(t, in)
			time.Sleep(5 * time.Second) // handshakes are triggered with another one
			synctest.Wait()
			for _, p := range engine().Status().Peers {
				if want := map[byte]uint16{1: gateway, 2: ordinary}[p.PublicKey[0]]; p.Keepalive != want {
					t.Errorf("peer %d has the keepalive %d, want %d", p.PublicKey[0], p.Keepalive, want)
				}
			}
		}
		keepalives(3, 0)
		in.settings.Keepalive = 25
		keepalives(3, 25)
		in.nodes[1].Agent.Forwards = false
		keepalives(25, 25)
		in.nodes[1].Agent.Forwards = true
		keepalives(3, 25)
	})
}

func TestGatewayThatCannotForwardReportsIt(t *testing.T) {
	m, n, _ := newTestMeshReconciler(t)
	n.forwardingErr = errors.New("IPv4 packets are not forwarded")
	r := m.mustReconcile(t, homeGateways())
	if r.status.Gateway.Forwards || !slices.Contains(r.notes, "this node is no gateway of its location home: IPv4 packets are not forwarded") || r.requeueAfter != forwardingCheckInterval {
		t.Errorf("got %+v, notes %v, again after %v", r.status.Gateway, r.notes, r.requeueAfter)
	}
	n.forwardingErr = nil
	if r := m.mustReconcile(t, homeGateways()); !r.status.Gateway.Forwards || len(r.notes) > 0 {
		t.Errorf("got %+v, notes %v", r.status.Gateway, r.notes)
	}
}

// TestNodesBehindGatewayAreNoPeers reconciles an ordinary node of a location, before and after it has published its own.
func TestNodesBehindGatewayAreNoPeers(t *testing.T) {
	m, n, engine := newTestMeshReconciler(t)
	own, gateway, far := meshNode(0, noise.PublicKey{9}), meshNode(1, noise.PublicKey{1}), meshNode(2, noise.PublicKey{2})
	gateway.GatewayOf, gateway.Agent.Location, gateway.Agent.Forwards = "home", "home", true
	far.GatewayOf, far.Agent.Location, far.Agent.Forwards = "office", "office", true
	published := own
	own.Agent = nil
	for _, self := range []mesh.Node{own, published} {
		if self.Agent != nil {
			self.Agent.Location = "home"
		}
		r := m.mustReconcile(t, reconcileInput{nodes: []mesh.Node{self, gateway, far}, self: self, location: "home"})
		have := engine().Status().Peers
		if r.status.Peers != 1 || r.behind != 1 || r.withoutTunnel != 0 || len(have) != 1 || !slices.Contains(have[0].AllowedIPs, far.PodCIDRs[0]) {
			t.Errorf("got %d peers, %d behind, %d without a tunnel, %v", r.status.Peers, r.behind, r.withoutTunnel, have)
		}
		if !slices.Contains(n.routing.Routes, far.PodCIDRs[0]) || m.keyOwners[noise.PublicKey{2}] != far.Name {
			t.Errorf("routes %v, owners of keys %v", n.routing.Routes, m.keyOwners)
		}
	}
}

func TestForwardingIsCheckedByIPVersion(t *testing.T) {
	inNamespace(t, func() error {
		v4, v6 := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, []netip.Prefix{netip.MustParsePrefix("fd00::/64")}
		if err := errors.Join(addLink("tunnel", "10.244.1.0/32"), setSysctl("ipv4/conf/tunnel/forwarding", "0"), setSysctl("ipv6/conf/all/forwarding", "1")); err != nil {
			return err
		}
		if err := checkForwarding("tunnel", append(v6, v4...)); err == nil || !strings.Contains(err.Error(), "IPv4") {
			t.Errorf("IPv4 is off: got %v", err)
		}
		if err := errors.Join(checkForwarding("tunnel", v6), setSysctl("ipv4/conf/tunnel/forwarding", "1"), setSysctl("ipv6/conf/all/forwarding", "0")); err != nil {
			return err
		}
		if err := checkForwarding("tunnel", v6); err == nil || !strings.Contains(err.Error(), "IPv6") {
			t.Errorf("IPv6 is off: got %v", err)
		}
		if err := checkForwarding("absent", v4); err == nil {
			t.Error("a tunnel that is absent forwards")
		}
		return checkForwarding("tunnel", v4)
	})
}

// TestRestartedGatewayKeepsSilentGatewaysPublished starts an agent whose earlier one has published that nothing arrives from the other gateway. Otherwise
// all nodes would send to the silent one again.
func TestRestartedGatewayKeepsSilentGatewaysPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMeshReconciler(t)
		in := homeGateways()
		in.lastStatus.Gateway = &v1alpha1.GatewayStatus{Forwards: true, Unreachable: []string{"b", "removed"}}
		reports := func(want string) {
			t.Helper()
			synctest.Wait()
			r := m.mustReconcile(t, in)
			if got := strings.Join(r.status.Gateway.Unreachable, " "); got != want {
				t.Errorf("unreachable %q, want %q", got, want)
			}
			in.lastStatus = r.status
		}
		m.mustReconcile(t, in)
		for range 10 {
			reports("b")
			time.Sleep(5 * time.Second)
		}
		close(engine().done)
		synctest.Wait()
		time.Sleep(minReopenDelay)
		reports("b") // of another engine
		for range 8 {
			time.Sleep(5 * time.Second)
			engine().receive(noise.PublicKey{1}, 32)
		}
		reports("")
	})
}

// TestGatewayThatTheEngineLacksStaysUnreachable has an engine that refuses the change of its peers.
func TestGatewayThatTheEngineLacksStaysUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMeshReconciler(t)
		in := homeGateways()
		m.mustReconcile(t, in)
		time.Sleep(13 * time.Second)
		synctest.Wait()
		in.nodes[1].Agent.Key = noise.PublicKey{11}
		engine().mu.Lock()
		engine().peersErr = errors.New("no memory")
		engine().mu.Unlock()
		if _, err := m.reconcile(t.Context(), in); err == nil {
			t.Fatal("the engine's error is lost")
		}
		synctest.Wait()
		if got := m.unreachableGateways(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("unreachable %q, want b", got)
		}
	})
}

// TestGatewayWithoutPodsChecksForwardingForOthers has a gateway whose own pod prefixes are unknown. It forwards for the pods of others all the same.
func TestGatewayWithoutPodsChecksForwardingForOthers(t *testing.T) {
	m, n, _ := newTestMeshReconciler(t)
	in := homeGateways()
	in.self.PodCIDRs, in.nodes[0].PodCIDRs = nil, nil
	m.mustReconcile(t, in)
	if !slices.Contains(n.forwards, in.nodes[2].PodCIDRs[0]) {
		t.Errorf("forwarding is checked for %v, want the pods of other nodes", n.forwards)
	}
}

// TestRestoredGatewayKeepsSilentGatewaysPublished has an agent that restores its saved tunnel, and so watches the other gateway before it reaches the API.
func TestRestoredGatewayKeepsSilentGatewaysPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier, _, _ := newTestMeshReconciler(t)
		in := homeGateways()
		r := earlier.mustReconcile(t, in)
		earlier.stop()
		m := newMeshReconciler(earlier.cfg, r.saved, func() []netip.Addr { return nil }, func() {})
		t.Cleanup(m.stop)
		if err := m.applyPersisted(&persistedState{Routing: r.routing, Tunnel: r.saved}, in.settings); err != nil || m.gatewayWatch == nil {
			t.Fatalf("the restored tunnel has no other gateway, or error %v", err)
		}
		synctest.Wait()
		in.lastStatus.Gateway = &v1alpha1.GatewayStatus{Forwards: true, Unreachable: []string{"b"}}
		for range 3 {
			if got := m.mustReconcile(t, in).status.Gateway.Unreachable; !slices.Equal(got, []string{"b"}) {
				t.Errorf("unreachable %q, want b", got)
			}
			in.lastStatus.Gateway.Unreachable = nil // it is resumed once
			synctest.Wait()
		}
	})
}
