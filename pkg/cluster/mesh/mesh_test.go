// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

const port = 51820

var equal = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, config.Endpoint{}), cmpopts.EquateEmpty(),
}

// node returns the i-th node: 192.0.2.i, pods in 10.244.i.0/24, key {i}.
func node(i byte, edits ...func(*Node)) Node {
	addr := netip.AddrFrom4([4]byte{192, 0, 2, i})
	n := Node{
		Name: fmt.Sprintf("n%d", i), Created: time.Unix(int64(i), 0), Addrs: []netip.Addr{addr},
		PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24)},
		Agent: &Agent{
			Mode: ModeMesh, Key: noise.PublicKey{i}, Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, port)},
			Ports: spread.DefaultPorts, Gathers: true,
		},
	}
	for _, edit := range edits {
		edit(&n)
	}
	return n
}

func spreads(n *Node) { n.Agent.Mode = ModeSpread }

func prefixesOf(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

// peer returns the Peer of node(i).
func peer(i byte, allowed ...string) Peer {
	return Peer{
		Node: fmt.Sprintf("n%d", i), Key: noise.PublicKey{i}, AllowedIPs: prefixesOf(allowed...),
		Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, i}), port),
	}
}

// planned returns the Peer of node(i) in a plan, where the node's own address is an allowed IP as well.
func planned(i byte, pods ...string) Peer {
	return peer(i, append(pods, fmt.Sprintf("192.0.2.%d/32", i))...)
}

func TestNodesBehindOneNATHaveOwnPorts(t *testing.T) {
	at := func(address, endpoint string) func(*Node) {
		return func(n *Node) {
			n.Endpoint = netip.MustParseAddr(address)
			n.Agent.Endpoints = []netip.AddrPort{netip.MustParseAddrPort(endpoint)}
		}
	}
	const nat = "198.51.100.7"
	for _, c := range []struct {
		name       string
		two, three func(*Node)
		want       string // endpoints of both
		problems   string
	}{
		{"a port each", at(nat, nat+":4502"), at(nat, nat+":4503"), nat + ":4502 " + nat + ":4503", ""},
		{
			"one port: the older node keeps it", at(nat, nat+":4502"), at(nat, nat+":4502"), nat + ":4502 invalid AddrPort",
			"n3: it has published no endpoint of its own with an IP version that this node has; " +
				"n3: its endpoint 198.51.100.7:4502 is not used: it is an endpoint of the older node n2",
		},
		{
			"one port, which administrators set for the younger node", at(nat, nat+":4503"), func(n *Node) { at(nat, nat+":4503")(n); n.Port = 4503 },
			"invalid AddrPort " + nat + ":4503",
			"n2: it has published no endpoint of its own with an IP version that this node has; " +
				"n2: its endpoint 198.51.100.7:4503 is not used: administrators set its port for node n3",
		},
		{
			"another port than administrators set", func(n *Node) { at(nat, nat+":4502")(n); n.Port = 4503 }, at(nat, nat+":4504"),
			nat + ":4502 " + nat + ":4504", "",
		},
		{
			"administrators set the address for one of them only", func(n *Node) {
				n.Addrs = []netip.Addr{netip.MustParseAddr(nat)}
				n.Agent.Endpoints = []netip.AddrPort{netip.MustParseAddrPort(nat + ":4502")}
			}, at(nat, nat+":4503"), nat + ":4502 invalid AddrPort",
			"n3: it has published no endpoint of its own with an IP version that this node has; " +
				"n3: its address 198.51.100.7 is not used: it is an address of the older node n2",
		},
		{
			"an endpoint at another address", at(nat, nat+":4502"), at(nat, "198.51.100.8:4503"), nat + ":4502 invalid AddrPort",
			"n3: it has published no endpoint of its own with an IP version that this node has",
		},
		{
			"an address among pods", at("10.244.1.9", "10.244.1.9:1"), at("10.244.1.9", "10.244.1.9:2"), "invalid AddrPort invalid AddrPort",
			"n2: it has published no endpoint of its own with an IP version that this node has; " +
				"n2: its address 10.244.1.9 is not used: it lies in the pod prefixes of node n1; " +
				"n3: it has published no endpoint of its own with an IP version that this node has; " +
				"n3: its address 10.244.1.9 is not used: it lies in the pod prefixes of node n1",
		},
	} {
		plan, err := Tunnel("n1", []Node{node(3, c.three), node(2, c.two), node(1)}, TunnelConfig{})
		if err != nil || len(plan.Peers) != 2 {
			t.Fatalf("%s: %v, peers %v", c.name, err, plan.Peers)
		}
		if got := fmt.Sprint(plan.Peers[0].Endpoint, " ", plan.Peers[1].Endpoint); got != c.want {
			t.Errorf("%s: got endpoints %s, want %s", c.name, got, c.want)
		}
		var problems []string
		for _, p := range plan.Problems {
			problems = append(problems, p.Node+": "+p.Reason)
		}
		if got := strings.Join(problems, "; "); got != c.problems {
			t.Errorf("%s: got problems %q, want %q", c.name, got, c.problems)
		}
	}
}

func TestTunnelPlansPeersRoutesAndProblems(t *testing.T) {
	both := []Peer{planned(2, "10.244.2.0/24"), planned(3, "10.244.3.0/24")}
	without3 := []Peer{both[0], planned(3)}
	lost3 := planned(3, "10.244.3.0/24")
	lost3.Endpoint = netip.AddrPort{}
	routes := []string{"10.244.2.0/24", "10.244.3.0/24"}
	cluster := TunnelConfig{Pods: prefixesOf("10.244.0.0/16")}
	all := append([]string{"10.244.0.0/16"}, routes...)
	six := netip.MustParseAddr("2001:db8::2")
	for _, c := range []struct {
		name     string
		cfg      TunnelConfig
		edit     func(two, three *Node)
		peers    []Peer
		routes   []string
		exempt   []string
		problems string
	}{
		{
			"healthy: a node's own address is an allowed IP without a route (calico #9751, #11823)",
			TunnelConfig{},
			func(_, _ *Node) {}, both, routes, nil, "",
		},
		{
			"no cleartext before a peer has a key (cilium #21856): its pods are routed into the tunnel",
			TunnelConfig{},
			func(two, _ *Node) { two.Agent = nil }, both[1:], routes, nil, "",
		},
		{
			"an address of two nodes: the older node keeps it",
			TunnelConfig{},
			func(_, three *Node) { three.Addrs = append(three.Addrs, netip.MustParseAddr("192.0.2.2")) },
			both, routes, nil, "n3: its address 192.0.2.2 is not used: it is an address of the older node n2",
		},
		{
			"unknown key",
			TunnelConfig{},
			func(two, _ *Node) { two.Agent.Key = noise.PublicKey{} }, both[1:], routes, nil, "n2: it has not published its key yet",
		},
		{
			"cleartext on request",
			TunnelConfig{Cleartext: true},
			func(two, _ *Node) { two.Agent = nil }, both[1:], routes[1:], nil, "",
		},
		{
			"the cluster's prefixes are routed, except this node's own",
			cluster,
			func(_, _ *Node) {}, both, all,
			[]string{"10.244.1.0/24"},
			"",
		},
		{
			"a node that opted out is reached in the clear", TunnelConfig{}, func(two, _ *Node) { two.OptOut = true }, both[1:], routes[1:], nil, "",
		},
		{
			"also with the cluster's prefixes", cluster, func(two, _ *Node) { two.OptOut = true }, both[1:],
			[]string{"10.244.0.0/16", "10.244.3.0/24"},
			[]string{"10.244.1.0/24", "10.244.2.0/24"},
			"",
		},
		{
			"bootstrap without deadlock (cilium #28965, calico #5280): the API server bypasses the tunnel",
			TunnelConfig{Bypass: []netip.Addr{netip.MustParseAddr("10.244.2.64"), netip.MustParseAddr("198.51.100.1")}},
			func(_, _ *Node) {}, both, routes,
			[]string{"10.244.2.64/32"},
			"",
		},
		{
			"the tunnel's outer packets bypass the tunnel",
			TunnelConfig{Pods: prefixesOf("10.0.0.0/8", "192.0.2.0/24")},
			func(_, _ *Node) {}, both, append([]string{"10.0.0.0/8"}, append(slices.Clone(routes), "192.0.2.0/24")...),
			[]string{"10.244.1.0/24", "192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"},
			"",
		},
		{
			"a copied disk: the older node keeps the key",
			TunnelConfig{},
			func(_, three *Node) { three.Agent.Key = noise.PublicKey{2} },
			both[:1], routes, nil, "n3: its key is the key of node n2 (a copied disk?): give it another key",
		},
		{
			"a copied disk: a known owner keeps the key against an older node",
			TunnelConfig{KeyOwners: KeyOwners{{3}: "n3"}},
			func(two, _ *Node) { two.Agent.Key = noise.PublicKey{3} },
			both[1:], routes, nil, "n2: its key is the key of node n3 (a copied disk?): give it another key",
		},
		{
			"a next key never takes precedence over a current key",
			TunnelConfig{},
			func(two, _ *Node) { two.Agent.NextKey = noise.PublicKey{3} },
			both, routes, nil, "n2: its next key is the key of node n3",
		},
		{
			"a former owner with another key loses the old one",
			TunnelConfig{KeyOwners: KeyOwners{{2}: "n3"}},
			func(_, _ *Node) {}, both, routes, nil, "",
		},
		{
			"no other node may have this node's key",
			TunnelConfig{},
			func(two, _ *Node) { two.Agent.Key = noise.PublicKey{1} },
			both[1:], routes, nil, "n2: its key is the key of node n1 (a copied disk?): give it another key",
		},
		{
			"no node may have another's pods",
			TunnelConfig{},
			func(_, three *Node) { three.PodCIDRs = prefixesOf("10.244.2.128/25") },
			without3, routes[:1], nil, "n3: its pod prefix 10.244.2.128/25 is not used: it overlaps the pods of node n2",
		},
		{
			"a node may not have all pods",
			TunnelConfig{},
			func(_, three *Node) { three.PodCIDRs = prefixesOf("10.240.0.0/12", "10.244.3.0/24") },
			both, routes, nil, "n3: its pod prefix 10.240.0.0/12 is not used: it is too large for one node",
		},
		{
			"a node may not have the pods of two",
			TunnelConfig{},
			func(_, three *Node) { three.PodCIDRs = prefixesOf("10.244.2.0/23") },
			without3, routes[:1], nil, "n3: its pod prefix 10.244.2.0/23 is not used: it overlaps the pods of node n2",
		},
		{
			"a node may not have half of the address space",
			TunnelConfig{},
			func(_, three *Node) { three.PodCIDRs = prefixesOf("128.0.0.0/1", "2000::/3") },
			without3, routes[:1], nil, "n3: its pod prefix 128.0.0.0/1 is not used: it is too large for one node\nn3: its pod prefix 2000::/3 is not used: it is too large for one node",
		},
		{
			"a node may not have prefixes outside of the cluster's", cluster,
			func(_, three *Node) { three.PodCIDRs = prefixesOf("198.51.100.0/24", "169.254.169.254/32") },
			without3, all[:2],
			[]string{"10.244.1.0/24"},
			"n3: its pod prefix 169.254.169.254/32 is not used: it is outside of the cluster's pod prefixes\nn3: its pod prefix 198.51.100.0/24 is not used: it is outside of the cluster's pod prefixes",
		},
		{
			"a node may not have non-unicast prefixes",
			TunnelConfig{},
			func(_, three *Node) { three.PodCIDRs = prefixesOf("169.254.169.0/24", "fe80::/64", "224.0.0.0/24") },
			without3, routes[:1], nil,
			"n3: its pod prefix 169.254.169.0/24 is not used: it is no global unicast prefix\nn3: its pod prefix 224.0.0.0/24 is not used: it is no global unicast prefix\nn3: its pod prefix fe80::/64 is not used: it is no global unicast prefix",
		},
		{
			"prefix contains older nodes' addresses",
			TunnelConfig{},
			func(_, three *Node) { three.PodCIDRs = prefixesOf("192.0.2.0/25") },
			without3, routes[:1], nil, "n3: its pod prefix 192.0.2.0/25 is not used: it contains an address of node n1",
		},
		{
			"an address among another node's pods is rejected and stays routed into the tunnel", cluster,
			func(two, _ *Node) { two.Addrs = append(two.Addrs, netip.MustParseAddr("10.244.3.10")) },
			both, all,
			[]string{"10.244.1.0/24"},
			"n2: its address 10.244.3.10 is not used: it lies in the pod prefixes of node n3",
		},
		{
			"another node's address is rejected",
			TunnelConfig{},
			func(_, three *Node) { three.Agent.Endpoints = []netip.AddrPort{peer(2).Endpoint} },
			[]Peer{both[0], lost3},
			routes, nil, "n3: it has published no endpoint of its own with an IP version that this node has",
		},
		{
			"a node with a new address stays a peer without an endpoint: roaming may find it",
			TunnelConfig{},
			func(_, three *Node) { three.Addrs = nil },
			[]Peer{both[0], {Node: "n3", Key: noise.PublicKey{3}, AllowedIPs: prefixesOf("10.244.3.0/24")}},
			routes, nil, "n3: it has published no endpoint of its own with an IP version that this node has",
		},
		{
			"spec.endpoint replaces a node's addresses",
			TunnelConfig{},
			func(_, three *Node) {
				three.Endpoint = netip.MustParseAddr("198.51.100.3")
				three.Agent.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.3:7")}
			},
			[]Peer{both[0], {
				Node: "n3", Key: noise.PublicKey{3}, Endpoint: netip.MustParseAddrPort("198.51.100.3:7"),
				AllowedIPs: prefixesOf("10.244.3.0/24", "192.0.2.3/32", "198.51.100.3/32"), // it answers pods from its InternalIP
			}},
			routes, nil, "",
		},
		{
			"a node without spec.endpoint keeps its address against an older one with it, in another private network",
			TunnelConfig{},
			func(two, three *Node) {
				two.Endpoint, two.Addrs = netip.MustParseAddr("198.51.100.2"), three.Addrs
				two.Agent.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.2:7")}
			},
			[]Peer{{
				Node: "n2", Key: noise.PublicKey{2}, Endpoint: netip.MustParseAddrPort("198.51.100.2:7"),
				AllowedIPs: prefixesOf("10.244.2.0/24", "198.51.100.2/32"),
			}, both[1]},
			routes, nil, "",
		},
		{
			"the InternalIP of a node with spec.endpoint bypasses the tunnel, but not one among pods",
			TunnelConfig{Pods: prefixesOf("10.244.0.0/16", "192.0.2.2/31")},
			func(_, three *Node) {
				three.Endpoint = netip.MustParseAddr("198.51.100.3")
				three.Addrs = append(three.Addrs, netip.MustParseAddr("10.244.2.7"))
				three.Agent.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.3:7")}
			},
			[]Peer{both[0], {
				Node: "n3", Key: noise.PublicKey{3}, Endpoint: netip.MustParseAddrPort("198.51.100.3:7"),
				AllowedIPs: prefixesOf("10.244.3.0/24", "192.0.2.3/32", "198.51.100.3/32"),
			}},
			[]string{"10.244.0.0/16", "10.244.2.0/24", "10.244.3.0/24", "192.0.2.2/31"},
			[]string{"10.244.1.0/24", "192.0.2.2/32", "192.0.2.3/32"},
			"",
		},
		{
			"a next key is a peer beside the current key",
			TunnelConfig{},
			func(_, three *Node) { three.Agent.NextKey = noise.PublicKey{9} },
			append(slices.Clone(both), Peer{Node: "n3", Key: noise.PublicKey{9}, Endpoint: peer(3).Endpoint, Replaces: noise.PublicKey{3}}),
			routes, nil, "",
		},
		{
			"a node in spread mode is no peer", TunnelConfig{}, func(two, _ *Node) { spreads(two) }, both[1:], routes, nil, "",
		},
		{
			"an endpoint needs an IP version of this node", TunnelConfig{}, func(two, _ *Node) {
				two.Addrs = append(two.Addrs, six)
				two.Agent.Endpoints = append([]netip.AddrPort{netip.AddrPortFrom(six, port)}, two.Agent.Endpoints...)
			}, []Peer{planned(2, "10.244.2.0/24"), both[1]}, routes, nil, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := []Node{node(1), node(2), node(3)}
			c.edit(&nodes[1], &nodes[2])
			if slices.Contains(nodes[1].Addrs, six) {
				c.peers[0].AllowedIPs = append(c.peers[0].AllowedIPs, netip.PrefixFrom(six, 128))
			}
			for range 5 {
				rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
				got, err := Tunnel("n1", nodes, c.cfg)
				if err != nil {
					t.Fatal(err)
				}
				want := TunnelPlan{Peers: c.peers, Routes: prefixesOf(c.routes...), Exempt: prefixesOf(c.exempt...), Pods: prefixesOf("10.244.1.0/24")}
				if text := lines(got.Problems); text != c.problems {
					t.Errorf("problems: got %q, want %q", text, c.problems)
				}
				got.Problems, got.RefusedPrefixes, got.Unrouted = nil, 0, nil // agent.TestGuardClassesFollowPlan
				if len(got.MTU) > 0 {
					t.Errorf("no node has published an MTU: %v", got.MTU)
				}
				for _, n := range nodes {
					isPeer := func(p Peer) bool { return p.Node == n.Name }
					if n.Name != "n1" && !n.OptOut && !slices.ContainsFunc(c.peers, isPeer) {
						want.WithoutTunnel = append(want.WithoutTunnel, n.Name)
					}
				}
				slices.Sort(want.WithoutTunnel)
				if !c.cfg.Cleartext { // else agent.TestGuardClassesFollowPlan
					want.Beside = want.Exempt
				}
				if diff := cmp.Diff(want, got, equal); diff != "" {
					t.Error("-want +got\n" + diff)
				}
			}
		})
	}
}

// TestMappedPrefixIsRejected has a prefix that the kernel takes for an IPv4 route of 104 bits, which it refuses.
func TestMappedPrefixIsRejected(t *testing.T) {
	for _, pods := range [][]netip.Prefix{nil, prefixesOf("10.0.0.0/8", "::/0")} {
		nodes := []Node{node(1), node(2)}
		nodes[1].PodCIDRs = append(nodes[1].PodCIDRs, netip.MustParsePrefix("::ffff:10.9.0.0/104"))
		p, err := Tunnel("n1", nodes, TunnelConfig{Pods: pods})
		if err != nil || len(p.Problems) != 1 || len(p.Peers) != 1 {
			t.Errorf("problems %v, peers %v, %v", p.Problems, p.Peers, err)
		}
		for _, r := range slices.Concat(p.Routes, p.Peers[0].AllowedIPs) {
			if r.Addr().Is4In6() {
				t.Errorf("%v is used", r)
			}
		}
	}
}

// TestPrefixesOfOthersAreNotExempt has a wrong object that claims an older node's prefix for this node.
func TestPrefixesOfOthersAreNotExempt(t *testing.T) {
	nodes := []Node{node(1), node(2)}
	nodes[1].PodCIDRs = append(nodes[1].PodCIDRs, prefixesOf("10.244.0.0/16", "10.244.1.0/25")...)
	p, err := Tunnel("n2", nodes, TunnelConfig{Pods: prefixesOf("10.0.0.0/8")})
	if diff := cmp.Diff(prefixesOf("10.244.2.0/24"), p.Exempt, equal); err != nil || diff != "" || !slices.Equal(p.Pods, p.Exempt) || len(p.Notes) != 2 {
		t.Errorf("%v, notes %q, -want +got\n%s", err, p.Notes, diff)
	}
}

func TestMissingPodPrefixesAreReported(t *testing.T) {
	nodes := []Node{node(1), node(2), node(3)}
	nodes[0].PodCIDRs, nodes[1].PodCIDRs = nil, nil
	p, err := Tunnel("n1", nodes, TunnelConfig{})
	if err != nil || len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], "no pod prefixes of this node are known") {
		t.Errorf("notes %q, %v", p.Notes, err)
	}
	if got, want := lines(p.Problems), "n2: no pod prefixes of it are known: nothing is sent to its pods through the tunnel"; got != want {
		t.Errorf("problems %q, want %q", got, want)
	}
}

// TestPeersWithUnknownPodsAreListed: without a route, packets to their pods leave unencrypted.
func TestPeersWithUnknownPodsAreListed(t *testing.T) {
	nodes := []Node{node(1), node(2), node(3)}
	nodes[0].PodCIDRs, nodes[1].PodCIDRs = nil, nil
	for _, c := range []struct {
		cluster []netip.Prefix
		want    []string
	}{{nil, []string{"n2"}}, {prefixesOf("10.244.0.0/16"), nil}} {
		p, err := Tunnel("n1", nodes, TunnelConfig{Pods: c.cluster})
		if err != nil || !slices.Equal(p.UnknownPods, c.want) || len(p.WithoutTunnel) > 0 {
			t.Errorf("cluster prefixes %v: %v, without tunnel %v, %v", c.cluster, p.UnknownPods, p.WithoutTunnel, err)
		}
	}
}

func lines(all []Problem) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.Node+": "+p.Reason)
	}
	return strings.Join(texts, "\n")
}

func TestRouteMTUFollowsRemoteTunnel(t *testing.T) {
	withMTU := func(mtu int) func(*Node) { return func(n *Node) { n.Agent.MTU = mtu } }
	got, err := Tunnel("n1", []Node{node(1, withMTU(9000)), node(2, withMTU(1320)), node(3, withMTU(1)), node(4)}, TunnelConfig{})
	want := map[netip.Prefix]int{prefixesOf("10.244.2.0/24")[0]: 1320, prefixesOf("10.244.3.0/24")[0]: MinMTU}
	if diff := cmp.Diff(want, got.MTU, equal); diff != "" || err != nil {
		t.Error("-want +got\n"+diff, err)
	}
}

func TestOwnProblemsBecomeNotes(t *testing.T) {
	nodes := []Node{node(1), node(2), node(3, func(n *Node) {
		n.PodCIDRs = prefixesOf("10.9.0.0/24", "10.244.3.0/24")
		n.Addrs = append(n.Addrs, netip.MustParseAddr("10.244.2.9"))
	})}
	cfg := TunnelConfig{Pods: prefixesOf("10.244.0.0/16")}
	own, err := Tunnel("n3", nodes, cfg)
	want := []string{"its pod prefix 10.9.0.0/24 is not used: it is outside of the cluster's pod prefixes", "its address 10.244.2.9 is not used: it lies in the pod prefixes of node n2"}
	if err != nil || !slices.Equal(own.Notes, want) || len(own.Problems) != 0 {
		t.Errorf("got %q, %+v, error %v, want %q, length 0, no error", own.Notes, own.Problems, err, want)
	}
	other, err := Tunnel("n1", nodes, cfg)
	if err != nil || len(other.Notes) != 0 || len(other.Problems) != len(want) {
		t.Errorf("got %q, %+v, error %v, want length 0, length %d, no error", other.Notes, other.Problems, err, len(want))
	}
}

func TestOptedOutNodeHasNoTunnel(t *testing.T) {
	nodes := []Node{node(1, func(n *Node) { n.OptOut = true }), node(2)}
	if got, err := Tunnel("n1", nodes, TunnelConfig{}); err != nil || len(got.Peers)+len(got.Routes) > 0 {
		t.Errorf("got %+v, error %v, want no error", got, err)
	}
	if got := Spread("n1", nodes, true); len(got.Peers) > 0 {
		t.Errorf("got %+v, want no Peers", got)
	}
}

func TestTunnelOfUnknownNodeFails(t *testing.T) {
	if _, err := Tunnel("n9", []Node{node(1)}, TunnelConfig{}); !errors.Is(err, ErrUnknownNode) {
		t.Error(err)
	}
}

func TestSpreadOnlyTowardsGatheringNodes(t *testing.T) {
	for _, c := range []struct {
		name       string
		known      bool
		edit       func(two, three *Node)
		spreadTo   []string
		gatherOnly []string
		problems   string
	}{
		{"all nodes gather", true, func(_, _ *Node) {}, []string{"n2", "n3"}, nil, ""},
		{"one node does not gather", true, func(two, _ *Node) { two.Agent.Gathers = false }, []string{"n3"}, []string{"n2"}, ""},
		{"one node has no agent", true, func(two, _ *Node) { two.Agent = nil }, []string{"n3"}, nil, ""},
		{"one node opted out", true, func(two, _ *Node) { two.OptOut = true }, []string{"n3"}, nil, ""},
		{"one node is in mesh mode", true, func(two, _ *Node) { two.Agent.Mode = ModeMesh }, []string{"n3"}, nil, ""},
		{"this node's status has not propagated", false, func(_, _ *Node) {}, nil, []string{"n2", "n3"}, ""},
		{
			"a node claims another's address", true, func(_, three *Node) { three.Agent.Endpoints = []netip.AddrPort{peer(2).Endpoint} },
			[]string{"n2"},
			nil, "n3: it has published no endpoint of its own",
		},
		{
			"two nodes have one address", true, func(two, three *Node) {
				three.Addrs, three.Agent.Endpoints = two.Addrs, two.Agent.Endpoints
			}, []string{"n2"}, nil, "n3: it has published no endpoint of its own\nn3: its endpoint 192.0.2.2:51820 belongs to node n2",
		},
		{
			"two ports at one address: the first is used", true, func(_, three *Node) {
				three.Agent.Endpoints = append(three.Agent.Endpoints, netip.AddrPortFrom(three.Addrs[0], 51821))
			}, []string{"n2", "n3"}, nil, "",
		},
		{
			"the endpoint's port is a spread port", true, func(_, three *Node) {
				three.Agent.Endpoints = []netip.AddrPort{netip.AddrPortFrom(three.Addrs[0], 61000)}
			},
			[]string{"n2"},
			nil,
			"n3: it has published no endpoint of its own\nn3: its spread ports 61000-61999 contain the port of its endpoint 192.0.2.3:61000",
		},
		{
			"the spread ports are all ports", true, func(_, three *Node) { three.Agent.Ports = spread.Ports{First: 1024, Last: 65535} },
			[]string{"n2"},
			nil,
			"n3: it has published no endpoint of its own\nn3: its spread ports 1024-65535 contain the port of its endpoint 192.0.2.3:51820",
		},
		{
			"a node has no valid address", true, func(_, three *Node) {
				three.Addrs, three.Agent.Endpoints = nil, nil
				for _, a := range []string{"127.0.0.1", "224.0.0.1", "0.0.0.0", "255.255.255.255", "fe80::1%eth0", "::", "169.254.0.1", "0.1.2.3"} {
					three.Addrs = append(three.Addrs, netip.MustParseAddr(a))
					three.Agent.Endpoints = append(three.Agent.Endpoints, netip.AddrPortFrom(netip.MustParseAddr(a), port))
				}
			}, []string{"n2"}, nil, "n3: it has published no endpoint of its own",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := []Node{node(3, spreads), node(1, spreads), node(2, spreads)}
			c.edit(&nodes[2], &nodes[0])
			plan := Spread("n1", nodes, c.known)
			var to, gatherOnly []string
			for _, p := range plan.Peers {
				if p.Spread {
					to = append(to, p.Node)
				} else {
					gatherOnly = append(gatherOnly, p.Node)
				}
			}
			if diff := cmp.Diff([][]string{c.spreadTo, c.gatherOnly}, [][]string{to, gatherOnly}, equal); diff != "" {
				t.Error("-want +got\n" + diff)
			}
			if text := lines(plan.Problems); text != c.problems {
				t.Errorf("problems: got %q, want %q", text, c.problems)
			}
			if plan.SpreadsTo() != len(to) {
				t.Errorf("got %+v", plan)
			}
		})
	}
}

func TestGatherUsesPeersOwnPorts(t *testing.T) {
	wide := spread.Ports{First: 40000, Last: 40099}
	nodes := []Node{
		node(1, spreads), node(2, spreads, func(n *Node) { n.Agent.Ports = wide }),
		node(3, spreads, func(n *Node) { n.Agent.Ports = spread.Ports{} }),
	}
	for i, p := range Spread("n1", nodes, true).Peers {
		if want := []spread.Ports{wide, spread.DefaultPorts}[i]; p.Gather != want {
			t.Errorf("%s: got %v, want %v", p.Node, p.Gather, want)
		}
	}
}

// TestPrefixOwnersMatchPairwiseOracle compares findOverlaps with a pairwise comparison.
func TestPrefixOwnersMatchPairwiseOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		nodes := make([]Node, 1+r.IntN(12))
		for i := range nodes {
			nodes[i] = Node{Name: fmt.Sprintf("n%02d", i), Created: time.Unix(int64(r.IntN(4)), 0)}
			for range r.IntN(4) {
				a := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(3)), byte(r.IntN(256))})
				nodes[i].PodCIDRs = append(nodes[i].PodCIDRs, netip.PrefixFrom(a, 20+r.IntN(8)).Masked())
			}
		}
		got := assignPrefixes(nodes, nil, nil)
		where := newPodOwners(got)
		for i := range nodes {
			for _, p := range nodes[i].PodCIDRs {
				mine := true
				for j := range nodes {
					for _, o := range nodes[j].PodCIDRs {
						mine = mine && (!o.Overlaps(p) || compareAge(&nodes[j], &nodes[i]) >= 0)
					}
				}
				if slices.Contains(got[nodes[i].Name].accepted, p) != mine {
					t.Fatalf("%v: %s of %s: want %v, got %v", nodes, p, nodes[i].Name, mine, got)
				}
				if name := where.owner(p.Addr()); mine && name != nodes[i].Name {
					t.Fatalf("%s is a pod's of %q, want %s", p.Addr(), name, nodes[i].Name)
				}
			}
		}
	}
}

func TestUsableAddrsDropsInvalidOnes(t *testing.T) {
	given := []netip.Addr{netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:192.0.2.1")}
	for i := range byte(9) {
		given = append(given, netip.AddrFrom4([4]byte{198, 51, 100, i}))
	}
	if got := UsableAddrs(given); len(got) != maxAddrs-1 || got[0] != netip.MustParseAddr("192.0.2.1") {
		t.Error(got)
	}
}
