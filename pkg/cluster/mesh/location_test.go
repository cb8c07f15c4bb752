// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// in sets a node's location.
func in(location string) func(*Node) { return func(n *Node) { n.Agent.Location = location } }

// gatewayOf makes a node a gateway that does not reach others of its location.
func gatewayOf(location string, unreachable ...string) func(*Node) {
	return func(n *Node) {
		n.GatewayOf, n.Agent.Location, n.Agent.Forwards, n.Agent.Unreachable = location, location, true, unreachable
	}
}

// twoSites returns two sites of three nodes, and a node without a location. n1 and n2 are gateways of a, n4 and n5 of b.
func twoSites(edits ...func([]Node)) []Node {
	nodes := []Node{
		node(1, gatewayOf("a")), node(2, gatewayOf("a")), node(3, in("a")), node(4, gatewayOf("b")), node(5, gatewayOf("b")), node(6, in("b")), node(7),
	}
	for _, edit := range edits {
		edit(nodes)
	}
	return nodes
}

// reachedBy describes a plan's peers: each with the nodes behind it in brackets, and "+" for another gateway of the location.
func reachedBy(plan *TunnelPlan) string {
	var texts []string
	for i := range plan.Peers {
		p := &plan.Peers[i]
		text := p.Node
		if p.CoGateway {
			text += "+"
		}
		var behind []string
		for _, n := range p.Behind {
			behind = append(behind, n.Node)
		}
		if len(behind) > 0 {
			text += fmt.Sprint(behind)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

func TestGatewaysCarryBetweenLocations(t *testing.T) {
	edit := func(i int, with func(*Node)) func([]Node) { return func(nodes []Node) { with(&nodes[i-1]) } }
	for _, c := range []struct {
		name, self string
		edit       func([]Node)
		want       string
	}{
		{"an ordinary node", "n3", nil, "n1[n4 n5 n6] n2 n7"},
		{"the active gateway", "n1", nil, "n2+ n3 n4[n6] n5 n7"},
		{"another gateway", "n5", nil, "n1[n3] n2 n4+ n6 n7"},
		{"no location", "n7", nil, "n1 n2 n3 n4 n5 n6"},
		{"a gateway that others do not reach", "n6", edit(5, gatewayOf("b", "n4")), "n4 n5[n1 n2 n3] n7"},
		{"as the other location sees it", "n1", edit(5, gatewayOf("b", "n4")), "n2+ n3 n4 n5[n6] n7"},
		{"both gateways do not reach each other", "n6", func(n []Node) { gatewayOf("b", "n5")(&n[3]); gatewayOf("b", "n4")(&n[4]) }, "n4[n1 n2 n3] n5 n7"},
		{"a gateway that claims that it does not reach itself", "n6", edit(4, gatewayOf("b", "n4")), "n4[n1 n2 n3] n5 n7"},
		{"a node that is no gateway has no vote", "n6", edit(6, func(n *Node) { n.Agent.Unreachable = []string{"n4"} }), "n4[n1 n2 n3] n5 n7"},
		{"nor has a gateway of another location", "n6", edit(1, gatewayOf("a", "n4")), "n4[n1 n2 n3] n5 n7"},
		{"the status of a gateway that is down", "n9", func(n []Node) {
			gatewayOf("b", "n4", "n5")(&n[5])
			gatewayOf("b", "n4")(&n[4]) // before it failed
			gatewayOf("b", "n5")(&n[3])
			n[2] = node(9, in("a"))
		}, "n1[n4 n5 n6] n2 n7"},
		{"three gateways, of which one is left", "n7", func(n []Node) {
			gatewayOf("b", "n4", "n5")(&n[5])
			gatewayOf("b", "n4")(&n[4])
			n[6] = node(7, in("b"))
		}, "n4 n5 n6[n1 n2 n3]"},
		{"a gateway that does not forward", "n3", edit(1, func(n *Node) { n.Agent.Forwards = false }), "n1 n2[n4 n5 n6] n7"},
		{"a gateway that opted out", "n3", edit(1, func(n *Node) { n.OptOut = true }), "n2[n4 n5 n6] n7"},
		{"a gateway without a key", "n3", edit(1, func(n *Node) { n.Agent.Key = noise.PublicKey{} }), "n2[n4 n5 n6] n7"},
		{"a gateway in mode spread", "n3", edit(1, spreads), "n2[n4 n5 n6] n7"},
		{"a gateway with another node's key", "n3", edit(2, func(n *Node) { n.Agent.Key = noise.PublicKey{1} }), "n1[n4 n5 n6] n7"},
		{"this node has no gateway", "n3", func(n []Node) { n[0].Agent.Forwards, n[1].Agent.Forwards = false, false }, "n1 n2 n4 n5 n6 n7"},
		{"the other location has no gateway", "n3", func(n []Node) { n[3].Agent.Forwards, n[4].Agent.Forwards = false, false }, "n1 n2 n4 n5 n6 n7"},
		{"a gateway claims another location", "n3", edit(4, in("a")), "n1[n4 n5 n6] n2 n7"},
		{"a node claims another location", "n3", edit(6, in("a")), "n1[n4 n5] n2 n6 n7"},
		{"this node has published nothing", "n3", edit(3, func(n *Node) { n.Agent = nil }), "n1[n4 n5 n6] n2 n7"},
		{"a node whose key changes", "n3", edit(6, func(n *Node) { n.Agent.NextKey = noise.PublicKey{66} }), "n1[n4 n5 n6] n2 n7"},
		{"a gateway whose key changes", "n3", edit(1, func(n *Node) { n.Agent.NextKey = noise.PublicKey{66} }), "n1[n4 n5 n6] n2 n7 n1"},
	} {
		nodes := twoSites()
		if c.edit != nil {
			c.edit(nodes)
		}
		plan, err := Tunnel(c.self, nodes, TunnelConfig{Location: "a"})
		if got := reachedBy(&plan); err != nil || got != c.want {
			t.Errorf("%s: got %s, want %s, error %v", c.name, got, c.want, err)
		}
		for _, n := range nodes {
			if wanted := n.Name != c.self && !n.OptOut; slices.Contains(plan.Routes, n.PodCIDRs[0]) != wanted {
				t.Errorf("%s: the pods of %s have a route: %v, want %v", c.name, n.Name, !wanted, wanted)
			}
		}
	}
}

// reachedNodes returns the nodes that are peers or behind one.
func reachedNodes(plan *TunnelPlan) map[string]bool {
	names := map[string]bool{}
	for _, owner := range KeyOwnersOf(plan.Peers) {
		names[owner] = true
	}
	return names
}

func TestGatewaysOfOneLocationKeepAlive(t *testing.T) {
	for nodes, want := range map[uint16]uint16{0: 3, 2: 2, 25: 3} {
		plan, err := Tunnel("n1", twoSites(), TunnelConfig{Keepalive: nodes})
		for _, p := range plan.Peers {
			if wanted := map[bool]uint16{true: want, false: nodes}[p.CoGateway]; err != nil || p.Keepalive != wanted {
				t.Errorf("%s has the keepalive %d, want %d, error %v", p.Node, p.Keepalive, wanted, err)
			}
		}
	}
}

// TestPacketsArriveBetweenLocations follows packets between all nodes. Each node on the way accepts them from the one before.
func TestPacketsArriveBetweenLocations(t *testing.T) {
	for seed := range uint64(200) {
		nodes := randomLocations(rand.New(rand.NewPCG(seed, 1)))
		plans := map[string]TunnelPlan{}
		for i := range nodes {
			plan, err := Tunnel(nodes[i].Name, nodes, TunnelConfig{})
			if err != nil || len(plan.WithoutTunnel) > 0 {
				t.Fatal(err, plan.WithoutTunnel)
			}
			plans[nodes[i].Name] = plan
		}
		for i := range nodes {
			for j := range nodes {
				if hops, err := travel(&nodes[i], &nodes[j], nodes, plans); err != nil || hops > 3 {
					t.Fatalf("seed %d: %s to %s: %d hops, %v", seed, nodes[i].Name, nodes[j].Name, hops, err)
				}
			}
		}
	}
}

// randomLocations returns twelve nodes in three locations, and in none. Some are gateways, of which some do not forward, or do not reach others.
func randomLocations(r *rand.Rand) (nodes []Node) {
	for i := byte(1); i <= 12; i++ {
		n := node(i, in([]string{"", "a", "b", "c"}[r.IntN(4)]))
		if n.Agent.Location != "" && r.IntN(2) == 0 {
			n.GatewayOf, n.Agent.Forwards = n.Agent.Location, r.IntN(4) > 0
			n.Agent.Unreachable = []string{fmt.Sprintf("n%d", 1+r.IntN(12))}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// TestNoPacketLoopsWhileNodesDisagree gives each node another view of locations and gateways. Packets may be dropped, but pass no node twice.
func TestNoPacketLoopsWhileNodesDisagree(t *testing.T) {
	dropped := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		nodes, plans := randomLocations(r), map[string]TunnelPlan{}
		for i := range nodes {
			plan, err := Tunnel(nodes[i].Name, randomLocations(r), TunnelConfig{})
			if err != nil {
				t.Fatal(err)
			}
			plans[nodes[i].Name] = plan
		}
		for i := range nodes {
			for j := range nodes {
				hops, err := travel(&nodes[i], &nodes[j], nodes, plans)
				if err != nil {
					dropped++
				}
				if hops >= len(nodes) {
					t.Fatalf("seed %d: %s to %s: %d hops, %v", seed, nodes[i].Name, nodes[j].Name, hops, err)
				}
			}
		}
	}
	if dropped == 0 {
		t.Error("the nodes do not disagree")
	}
}

// TestLocationsWithoutGatewaysChangeNothing compares plans with and without locations, byte by byte.
func TestLocationsWithoutGatewaysChangeNothing(t *testing.T) {
	cfg := TunnelConfig{Keepalive: 25, Pods: prefixesOf("10.244.0.0/16"), Nodes: NodeTraffic{Encrypt: true, Within: prefixesOf("192.0.2.0/24")}}
	marshal := func(nodes []Node, cfg TunnelConfig) string {
		plan, err := Tunnel("n1", nodes, cfg)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(struct {
			TunnelPlan
			MTU any
		}{plan, fmt.Sprint(plan.MTU)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var with, without []Node
	for i := byte(1); i <= 6; i++ {
		n := encryptingNode(i)
		without = append(without, n)
		agent := *n.Agent
		agent.Location, agent.Unreachable = string('a'+i%3), []string{"n1"}
		n.Agent = &agent
		with = append(with, n)
	}
	want := marshal(without, cfg)
	cfg.Location = "a"
	if diff := cmp.Diff(want, marshal(with, cfg)); diff != "" {
		t.Error(diff)
	}
	for _, member := range []string{"behind", "coGateway", "gateway"} {
		if strings.Contains(want, `"`+member+`"`) {
			t.Errorf("a plan without locations has the member %s: %s", member, want)
		}
	}
}

func TestNodesBehindGatewayKeepTheirKeys(t *testing.T) {
	nodes := twoSites(func(n []Node) { n[5].Agent.NextKey = noise.PublicKey{66} })
	before, err := Tunnel("n3", nodes, TunnelConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, stolen := range []noise.PublicKey{{6}, {66}} {
		nodes[1].Agent.Key, nodes[1].Created = stolen, nodes[0].Created.Add(-1) // an older node of this location
		plan, err := Tunnel("n3", nodes, TunnelConfig{KeyOwners: KeyOwnersOf(before.Peers)})
		if got := reachedBy(&plan); err != nil || got != "n1[n4 n5 n6] n7" {
			t.Errorf("key %d: got %s, error %v", stolen[0], got, err)
		}
		if next := plan.Peers[0].Behind[2].NextKey; next != (noise.PublicKey{66}) {
			t.Errorf("key %d: n6 has the next key %v", stolen[0], next)
		}
	}
}

func TestNodeBehindGatewayWithoutKeyHasNoTunnel(t *testing.T) {
	plan, err := Tunnel("n3", twoSites(func(n []Node) { n[5].Agent.Key = noise.PublicKey{}; n[4].Agent = nil }), TunnelConfig{})
	if got := strings.Join(plan.WithoutTunnel, " "); err != nil || got != "n5 n6" {
		t.Errorf("without a tunnel: %s, error %v", got, err)
	}
}

func TestGatewayThatDoesNotForwardIsReported(t *testing.T) {
	nodes := twoSites(func(n []Node) { n[0].Agent.Forwards = false })
	plan, err := Tunnel("n3", nodes, TunnelConfig{})
	const want = "n1: it does not forward for its location a, so it is no gateway"
	if got := lines(plan.Problems); err != nil || got != want {
		t.Errorf("got %s, error %v", got, err)
	}
	if plan, err = Tunnel("n1", nodes, TunnelConfig{}); err != nil || len(plan.Notes)+len(plan.Problems) > 0 {
		t.Errorf("its own agent knows more: %v, %v, error %v", plan.Notes, plan.Problems, err)
	}
}

func TestRouteMTUFollowsGatewaysOnTheWay(t *testing.T) {
	nodes := twoSites(func(n []Node) {
		n[0].Agent.MTU, n[3].Agent.MTU, n[5].Agent.MTU = 1390, 1380, 1400
	})
	for self, want := range map[string]int{"n3": 1380, "n1": 1380, "n5": 1400, "n7": 1400} {
		if plan, err := Tunnel(self, nodes, TunnelConfig{}); err != nil || plan.MTU[nodes[5].PodCIDRs[0]] != want {
			t.Errorf("%s: MTU %v, want %d, error %v", self, plan.MTU, want, err)
		}
	}
}

func TestNodeTrafficBehindGatewaysNeedsTheirEncryption(t *testing.T) {
	cfg := TunnelConfig{Nodes: NodeTraffic{Encrypt: true, Within: prefixesOf("192.0.2.0/24")}}
	for _, c := range []struct {
		self  string
		clear int // the node that does not encrypt; 0: none
		want  string
	}{{"n3", 0, ""}, {"n3", 6, "n6"}, {"n3", 4, "n4 n6"}, {"n3", 1, "n1 n4 n5 n6"}, {"n3", 5, "n5"}, {"n1", 4, "n4 n6"}, {"n1", 5, "n5"}} {
		nodes := twoSites(func(n []Node) {
			for i := range n {
				n[i].Agent.EncryptsNodes = i+1 != c.clear
			}
		})
		plan, err := Tunnel(c.self, nodes, cfg)
		if got := strings.Join(plan.ClearNodes, " "); err != nil || got != c.want || len(plan.NodeRoutes)+len(plan.ClearNodes) != 6 {
			t.Errorf("%s, %d in the clear: got %s, want %s, routes %v, error %v", c.self, c.clear, got, c.want, plan.NodeRoutes, err)
		}
	}
}

// TestExternalPeerIsReachedThroughBothGateways has a RopewalkPeer whose gateway is a node of another location.
func TestExternalPeerIsReachedThroughBothGateways(t *testing.T) {
	west := external(1, "west", "10.8.0.0/16")
	west.Gateway = "n6"
	for self, want := range map[string]string{"n3": "n1", "n1": "n4", "n4": "n6", "n7": "n6"} {
		cfg := TunnelConfig{External: []ExternalPeer{west}}
		plan, err := Tunnel(self, twoSites(), cfg)
		i := slices.IndexFunc(plan.Peers, func(p Peer) bool { return slices.Contains(p.AllowedIPs, west.AllowedIPs[0]) })
		if err != nil || i < 0 || plan.Peers[i].Node != want || len(plan.Notes) > 0 {
			t.Errorf("%s: peers %v, notes %v, error %v", self, plan.Peers, plan.Notes, err)
			continue
		}
		cfg.External = ExternalPeersOf(plan.Peers)
		if cfg.External[0].Gateway != "n6" {
			t.Errorf("%s: saved as %v", self, cfg.External)
		}
	}
}

func TestLocationsReduceNumberOfPeers(t *testing.T) {
	nodes := located(5000, 10)
	for self, want := range map[string]int{"node-4999": 499, "node-0": 499 + 18} {
		plan, err := Tunnel(self, nodes, TunnelConfig{})
		if err != nil || len(plan.Peers) != want || len(reachedNodes(&plan)) != 4999 {
			t.Errorf("%s: %d peers, want %d, reaches %d, error %v", self, len(plan.Peers), want, len(reachedNodes(&plan)), err)
		}
	}
}

// located returns n nodes in locations of the same size, each with two gateways.
func located(n, locations int) []Node {
	nodes := cluster(n, ModeMesh)
	for i := range nodes {
		nodes[i].Agent.Location = fmt.Sprintf("location-%d", i%locations)
		if i < 2*locations {
			nodes[i].GatewayOf, nodes[i].Agent.Forwards = nodes[i].Agent.Location, true
		}
	}
	return nodes
}

// TestAgentsThatKnowNoLocationsArePeersOfAll has nodes whose agent is older than locations, in the middle of a rollout. Such an agent has all
// nodes as peers, whatever administrators set.
func TestAgentsThatKnowNoLocationsArePeersOfAll(t *testing.T) {
	unaware := func(i int) func([]Node) {
		return func(n []Node) { n[i-1].Agent.Location, n[i-1].Agent.Forwards = "", false }
	}
	for _, c := range []struct {
		self string
		old  int
		want string
	}{
		{"n3", 4, "n1[n5 n6] n2 n4 n7"}, // n4 is to be a gateway
		{"n1", 4, "n2+ n3 n4 n5[n6] n7"},
		{"n6", 4, "n4 n5[n1 n2 n3] n7"},
		{"n3", 6, "n1[n4 n5] n2 n6 n7"},
		{"n3", 3, "n1 n2 n4 n5 n6 n7"}, // this node, before its status
		{"n1", 1, "n2 n3 n4 n5 n6 n7"},
	} {
		plan, err := Tunnel(c.self, twoSites(unaware(c.old)), TunnelConfig{Location: "a"})
		if got := reachedBy(&plan); err != nil || got != c.want {
			t.Errorf("%s, n%d is old: got %s, want %s, error %v", c.self, c.old, got, c.want, err)
		}
	}
}
