// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// TestNodeEncryptionBeginsWhenOthersKnow follows a node from its start, through a lost status, to its end.
func TestNodeEncryptionBeginsWhenOthersKnow(t *testing.T) {
	m, n, _ := newTestMeshReconciler(t)
	m.intent.nodes = nodeEncryptionIntent{enabled: true, within: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	own, other, plain := meshNode(0, noise.PublicKey{}), meshNode(1, noise.PublicKey{1}), meshNode(2, noise.PublicKey{2})
	other.Agent.EncryptsNodes = true
	in := reconcileInput{nodes: []mesh.Node{own, other, plain}, self: own, encryptNodes: true}
	if r := m.mustReconcile(t, in); r.announcement.EncryptsNodes || n.routing.Nodes != nil || !strings.Contains(r.clusterNote, "addresses of the API server") {
		t.Errorf("without the API server's addresses: %v, %q", n.routing.Nodes, r.clusterNote)
	}
	api := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}
	in.apiEndpoints = api
	if r := m.mustReconcile(t, in); !r.announcement.EncryptsNodes || n.routing.Nodes != nil || n.nodes != nil {
		t.Errorf("before others know: published %v, %v", r.announcement.EncryptsNodes, n.routing.Nodes)
	}
	in.announced.EncryptsNodes = true
	r := m.mustReconcile(t, in)
	want := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	if got := n.routing.Nodes; got == nil || !slices.Equal(got.Routes, want) || !slices.Equal(got.API, api) || n.nodes != got {
		t.Fatalf("got %+v", got)
	}
	if r.nodeRoutes != 1 || r.clearNodes != 1 || !strings.Contains(r.clusterNote, "traffic to 1 other nodes") {
		t.Errorf("%d routes, %d nodes in the clear, %q", r.nodeRoutes, r.clearNodes, r.clusterNote)
	}
	in.announced, in.apiEndpoints = v1alpha1.AnnouncementSpec{}, nil // the announcement was deleted, and the EndpointSlice is not known
	if r := m.mustReconcile(t, in); n.routing.Nodes == nil || !r.announcement.EncryptsNodes {
		t.Error("a lost status ends the encryption")
	}
	resumed := resumeNodeEncryption(n.routing)
	if publish, _ := resumed.update(&in); !publish || !resumed.active {
		t.Error("a restart ends the encryption")
	}
	in.oldKernel = "5.10.0"
	if r := m.mustReconcile(t, in); n.routing.Nodes != nil || r.announcement.EncryptsNodes || !strings.Contains(r.clusterNote, "needs Linux 6.1, and this is 5.10.0") {
		t.Errorf("on a kernel that ignores ports: %v, %q", n.routing.Nodes, r.clusterNote)
	}
	in.oldKernel = ""
	m.mustReconcile(t, in)
	in.encryptNodes = false // a label
	if r := m.mustReconcile(t, in); n.routing.Nodes != nil || r.announcement.EncryptsNodes || r.clearNodes != 0 {
		t.Error("the node still takes part")
	}
}

func TestLabelsExcludeNodeFromEncryption(t *testing.T) {
	worker, control := &node{}, &node{}
	worker.Labels = map[string]string{"a": "b"}
	control.Labels = map[string]string{"a": "b", "node-role.kubernetes.io/control-plane": ""}
	c := nodeEncryptionIntent{enabled: true}
	if !c.wantedOn(control) {
		t.Error("a node is excluded without labels")
	}
	c.except = labels.SelectorFromSet(labels.Set{"node-role.kubernetes.io/control-plane": ""})
	if c.wantedOn(control) || !c.wantedOn(worker) {
		t.Error("the label does not decide")
	}
	if c.enabled = false; c.wantedOn(worker) || c.mark() != 0 {
		t.Error("wanted although it is disabled")
	}
}

func apiEndpointsWithoutServer(t *testing.T) *apiEndpoints {
	t.Helper()
	e, err := newAPIEndpoints(&rest.Config{Host: "127.0.0.1:1"}, slog.New(slog.DiscardHandler), func() {})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAPIServerAddressesComeFromEndpointSlice(t *testing.T) {
	e := apiEndpointsWithoutServer(t)
	reached := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.100:443")}
	if got, _ := e.with(reached, nil); got != nil {
		t.Errorf("while they are unknown: %v", got)
	}
	s := &endpointSlice{}
	s.Name = apiService
	s.Endpoints = append(s.Endpoints, struct {
		Addresses []string `json:"addresses"`
	}{[]string{"192.0.2.3", "192.0.2.1", "nonsense"}})
	for _, port := range []int32{6443, 0, 70000} {
		s.Ports = append(s.Ports, struct {
			Port int32 `json:"port"`
		}{port})
	}
	if err := e.GetStore().Add(s.DeepCopyObject()); err != nil {
		t.Fatal(err)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443"), netip.MustParseAddrPort("192.0.2.3:6443"), reached[0]}
	if got, over := e.with(reached, nil); !slices.Equal(got, want) || over != 0 {
		t.Errorf("got %v and %d more, want %v", got, over, want)
	}
}

// TestEndpointSliceExemptsNodesOnly has one with addresses of pods, and with more addresses than are exempt.
func TestEndpointSliceExemptsNodesOnly(t *testing.T) {
	within := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	reached := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443")}
	for _, c := range []struct {
		what  string
		addrs []string
		want  int // of addresses besides the one at which the API server was reached
		over  int
	}{
		{"nodes and others", []string{"192.0.2.1", "10.244.1.5", "203.0.113.1"}, 1, 0},
		{"no node", []string{"203.0.113.1"}, 0, 0},
		{"one twice", []string{"192.0.2.1", "192.0.2.1"}, 1, 0},
		{"many", manyAddrs(maxAPIEndpoints + 3), maxAPIEndpoints, 3},
	} {
		e := apiEndpointsWithoutServer(t)
		s := &endpointSlice{}
		text := `{"metadata":{"name":"kubernetes"},"endpoints":[{"addresses":["` + strings.Join(c.addrs, `","`) + `"]}],"ports":[{"port":6443}]}`
		if err := errors.Join(json.Unmarshal([]byte(text), s), e.GetStore().Add(s)); err != nil {
			t.Fatal(err)
		}
		got, over := e.with(reached, within)
		if len(got) != c.want+1 || over != c.over || !slices.Contains(got, reached[0]) {
			t.Errorf("%s: got %v and %d more, want %d and %d more", c.what, got, over, c.want, c.over)
		}
	}
}

func manyAddrs(n int) (all []string) {
	for i := range n {
		all = append(all, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String())
	}
	return all
}

func TestUnexemptAPIServersAreReported(t *testing.T) {
	in := reconcileInput{encryptNodes: true, apiEndpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}, apiEndpointsOver: 3}
	if publish, note := new(nodeEncryption).update(&in); !publish || !strings.Contains(note, "3 addresses and ports of the API server") {
		t.Errorf("published %v, %q", publish, note)
	}
}
