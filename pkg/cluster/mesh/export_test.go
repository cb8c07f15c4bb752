// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// exported returns node(i) as a peer of another cluster.
func exported(i byte, allowed ...string) ExternalPeer {
	p := peer(i, allowed...)
	return ExternalPeer{Name: p.Node, Key: p.Key, AllowedIPs: p.AllowedIPs, Endpoint: p.Endpoint, Selected: true}
}

func TestExportGivesKeysEndpointsAndPods(t *testing.T) {
	one := exported(1, "10.244.1.0/24")
	nat, public, kept := one, one, one
	nat.Endpoint = netip.AddrPort{}
	public.Endpoint = netip.MustParseAddrPort("198.51.100.7:51820")
	kept.Keepalive = 25
	dual := exported(1, "10.244.1.0/24", "fd00:244:1::/64")
	addrs := map[string]netip.Addr{"n1": netip.MustParseAddr("198.51.100.7")}
	for _, c := range []struct {
		name    string
		cfg     ExportConfig
		edit    func(one, two *Node)
		want    []ExternalPeer
		skipped string
		err     string
	}{
		{"two nodes", ExportConfig{}, func(_, _ *Node) {}, []ExternalPeer{one, exported(2, "10.244.2.0/24")}, "", ""},
		{"behind a NAT", ExportConfig{BehindNAT: true}, func(_, two *Node) { two.OptOut = true }, []ExternalPeer{nat}, "", ""},
		{"an ExternalIP", ExportConfig{PublicAddrs: addrs}, func(_, two *Node) { two.OptOut = true }, []ExternalPeer{public}, "", ""},
		{"no ExternalIP", ExportConfig{PublicAddrs: addrs}, func(_, _ *Node) {}, nil, "", "node n2: it has no ExternalIP"},
		{"keepalive", ExportConfig{Keepalive: 25}, func(_, two *Node) { two.OptOut = true }, []ExternalPeer{kept}, "", ""},
		{
			"both IP versions",
			ExportConfig{},
			func(one, two *Node) {
				one.PodCIDRs, two.OptOut = append(one.PodCIDRs, netip.MustParsePrefix("fd00:244:1::/64")), true
			},
			[]ExternalPeer{dual},
			"", "",
		},
		{
			"adjacent prefixes are merged",
			ExportConfig{},
			func(one, two *Node) {
				one.PodCIDRs, two.OptOut = prefixesOf("10.244.1.128/25", "10.244.1.0/26", "10.244.1.64/26"), true
			},
			[]ExternalPeer{one},
			"", "",
		},
		{"no agent", ExportConfig{}, func(_, two *Node) { two.Agent = nil }, []ExternalPeer{one}, "n2: it has no agent in mode mesh with a key", ""},
		{"mode spread", ExportConfig{}, func(_, two *Node) { spreads(two) }, []ExternalPeer{one}, "n2: it has no agent in mode mesh with a key", ""},
		{"no key", ExportConfig{}, func(_, two *Node) { two.Agent.Key = noise.PublicKey{} }, []ExternalPeer{one}, "n2: it has not published its key yet", ""},
		{"no pods", ExportConfig{}, func(_, two *Node) { two.PodCIDRs = nil }, []ExternalPeer{one}, "n2: no pod prefixes of it are known", ""},
		{
			"pods of two nodes",
			ExportConfig{},
			func(_, two *Node) { two.PodCIDRs = prefixesOf("10.244.1.0/25") }, nil, "",
			"node n2: its pod prefix 10.244.1.0/25 is not used: it overlaps the pods of node n1",
		},
		{"a copied key", ExportConfig{}, func(_, two *Node) { two.Agent.Key = noise.PublicKey{1} }, nil, "", "node n2: its key is the key of node n1"},
		{
			"no endpoint",
			ExportConfig{},
			func(_, two *Node) { two.Agent.Endpoints = nil }, nil, "",
			"node n2: it has published no endpoint of its own",
		},
		{
			"nodes behind one NAT with one port",
			ExportConfig{},
			func(one, two *Node) {
				for _, n := range []*Node{one, two} {
					n.Endpoint, n.Agent.Endpoints = addrs["n1"], []netip.AddrPort{public.Endpoint}
				}
			},
			nil, "", "node n2: its endpoint 198.51.100.7:51820 is the endpoint of node n1",
		},
		{
			"an ExternalIP among pods",
			ExportConfig{PublicAddrs: map[string]netip.Addr{"n1": netip.MustParseAddr("10.244.2.9"), "n2": addrs["n1"]}},
			func(_, _ *Node) {}, nil, "", "node n1: its endpoint 10.244.2.9:51820 lies in the pods 10.244.2.0/24 of node n2",
		},
		{
			"more prefixes than a peer can have",
			ExportConfig{},
			func(_, two *Node) {
				for i := range byte(65) {
					two.PodCIDRs = append(two.PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, 2 * i, 0}), 24))
				}
			},
			nil, "", "node n2: its pods have 66 prefixes, a RopewalkPeer can have 64",
		},
	} {
		one, two := node(1), node(2)
		c.edit(&one, &two)
		got, skipped, err := Export([]Node{two, one}, c.cfg)
		var left []string
		for _, s := range skipped {
			left = append(left, s.Node+": "+s.Reason)
		}
		if text := strings.Join(left, "; "); text != c.skipped {
			t.Errorf("%s: got skipped %q, want %q", c.name, text, c.skipped)
		}
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: got error %v, want %s", c.name, err, c.err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got, equal); err != nil || diff != "" {
			t.Errorf("%s: %v -want +got\n%s", c.name, err, diff)
		}
	}
}

// TestMergedPrefixesHaveSameAddresses compares with the addresses of the prefixes, one by one.
func TestMergedPrefixesHaveSameAddresses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var all []netip.Prefix
		for range random.IntN(12) {
			p, _ := netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(64))}).Prefix(26 + random.IntN(7))
			all = append(all, p)
		}
		merged := mergePrefixes(all)
		for i := range 64 {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			within := func(p netip.Prefix) bool { return p.Contains(a) }
			if slices.ContainsFunc(all, within) != slices.ContainsFunc(merged, within) {
				t.Fatalf("%v became %v, which differ in %s", all, merged, a)
			}
		}
		for i, p := range merged {
			for _, q := range merged[i+1:] {
				around := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
				if p.Overlaps(q) || p.Bits() == q.Bits() && around.Contains(q.Addr()) {
					t.Fatalf("%v became %v: %s and %s could be one", all, merged, p, q)
				}
			}
		}
	}
}

// TestMergedPrefixesAreNotTooLarge: the CRD permits no shorter ones.
func TestMergedPrefixesAreNotTooLarge(t *testing.T) {
	all := prefixesOf("10.0.0.0/8", "11.0.0.0/9", "11.128.0.0/9", "2002::/16", "2003::/16")
	if got, want := fmt.Sprint(mergePrefixes(all)), "[10.0.0.0/8 11.0.0.0/8 2002::/16 2003::/16]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPacketsArriveBetweenExportedClusters exchanges the exports of two clusters, with and without gateways. A packet from any pod then
// arrives at any other, and each node on its way accepts it from the one before.
func TestPacketsArriveBetweenExportedClusters(t *testing.T) {
	east, west := []Node{node(1), node(2), node(6)}, []Node{node(3), node(4), node(5)}
	for _, c := range []struct {
		name               string
		eastward, westward ExportConfig // of the export into east, and into west
		hops               int          // at most
	}{
		{"each node to each", ExportConfig{}, ExportConfig{}, 1},
		{"a gateway in east", ExportConfig{Via: "n2"}, ExportConfig{Gateway: "n2"}, 2},
		{"a gateway in west", ExportConfig{Gateway: "n4"}, ExportConfig{Via: "n4"}, 2},
		{"gateways in both", ExportConfig{Gateway: "n4", Via: "n2"}, ExportConfig{Gateway: "n2", Via: "n4"}, 3},
		{
			"gateways with the clusters' prefixes",
			ExportConfig{Gateway: "n4", Via: "n2", Pods: prefixesOf("10.244.3.0/24", "10.244.4.0/23")},
			ExportConfig{Gateway: "n2", Via: "n4", Pods: prefixesOf("10.244.1.0/24", "10.244.2.0/24", "10.244.6.0/23")},
			3,
		},
	} {
		plans := plansWith(t, east, west, c.eastward)
		maps.Copy(plans, plansWith(t, west, east, c.westward))
		all := slices.Concat(east, west)
		for i := range all {
			for j := range all {
				if hops, err := travel(&all[i], &all[j], all, plans); err != nil || hops > c.hops {
					t.Errorf("%s: %s to %s: %d hops, want at most %d: %v", c.name, all[i].Name, all[j].Name, hops, c.hops, err)
				}
			}
		}
	}
}

// plansWith returns the plans of a cluster's nodes, with an export of another cluster.
func plansWith(t *testing.T, nodes, exported []Node, cfg ExportConfig) map[string]TunnelPlan {
	t.Helper()
	imported, _, err := Export(exported, cfg)
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]TunnelPlan{}
	for _, n := range nodes {
		plan, err := Tunnel(n.Name, nodes, TunnelConfig{External: imported})
		if err != nil || len(plan.Refused) > 0 || len(plan.Notes) > 0 {
			t.Fatalf("%v, refused %v, notes %v", err, plan.Refused, plan.Notes)
		}
		plans[n.Name] = plan
	}
	return plans
}

// travel follows a packet between the pods of two nodes, and returns the number of tunnels it takes.
func travel(from, to *Node, all []Node, plans map[string]TunnelPlan) (hops int, err error) {
	src, dst := from.PodCIDRs[0].Addr().Next(), to.PodCIDRs[0].Addr().Next()
	for at := from; at != to; hops++ {
		key, ok := nextHop(plans[at.Name], dst)
		i := slices.IndexFunc(all, func(n Node) bool { return n.Agent.Key == key })
		if !ok || i < 0 || hops > len(all) {
			return hops, fmt.Errorf("%s has no next hop", at.Name)
		}
		if sender, ok := nextHop(plans[all[i].Name], src); !ok || sender != at.Agent.Key {
			return hops, fmt.Errorf("%s does not accept it from %s", all[i].Name, at.Name)
		}
		at = &all[i]
	}
	return hops, nil
}

// nextHop returns the key of the peer to which a plan sends packets for an address, if it routes it into the tunnel. The longest allowed IP decides.
func nextHop(plan TunnelPlan, a netip.Addr) (key noise.PublicKey, ok bool) {
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if !slices.ContainsFunc(plan.Routes, within) || slices.ContainsFunc(plan.Exempt, within) {
		return key, false
	}
	best := -1
	for _, p := range plan.Peers {
		for _, allowed := range p.AllowedIPs {
			if allowed.Contains(a) && allowed.Bits() > best {
				key, best = p.Key, allowed.Bits()
			}
		}
	}
	return key, best >= 0
}

func TestGatewayExportIsChecked(t *testing.T) {
	scattered := []Node{node(1), node(2)}
	for i := range byte(64) {
		scattered = append(scattered, node(3, func(n *Node) {
			n.Name, n.Agent = fmt.Sprintf("s%d", i), new(*n.Agent)
			n.Agent.Key, n.PodCIDRs = noise.PublicKey{3, i}, []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, 2 * i, 0}), 24)}
		}))
	}
	for _, c := range []struct {
		nodes []Node
		cfg   ExportConfig
		want  string // allowed IPs, or the error
	}{
		{scattered[:2], ExportConfig{Gateway: "n1"}, "[10.244.1.0/24 10.244.2.0/24]"},
		{scattered[:2], ExportConfig{Gateway: "n2", Pods: prefixesOf("10.244.0.0/16")}, "[10.244.0.0/16]"},
		{scattered[:2], ExportConfig{Gateway: "n1", Pods: prefixesOf("10.244.0.0/23")}, "node n2: its pods 10.244.2.0/24 are outside of the given prefixes"},
		{scattered[:2], ExportConfig{Gateway: "n9"}, "the gateway n9 is no node in mode mesh with a key and pods"},
		{scattered, ExportConfig{Gateway: "n1"}, "the pods of all nodes have 66 prefixes, a RopewalkPeer can have 64: give the prefixes of the cluster's pods"},
		{scattered, ExportConfig{Gateway: "n1", Pods: prefixesOf("10.244.0.0/15")}, "[10.244.0.0/15]"},
		{scattered, ExportConfig{Gateway: "n1", Pods: prefixesOf("0.0.0.0/0")}, "node n1: its allowed IP 0.0.0.0/0 is too large"},
		{scattered, ExportConfig{Gateway: "n1", Pods: prefixesOf("10.244.0.0/15", "fe80::/64")}, "node n1: its allowed IP fe80::/64 is no global unicast prefix"},
		{scattered, ExportConfig{Gateway: "n1", Pods: prefixesOf("10.0.0.0/8", "192.0.2.0/24")}, "node n1: its endpoint 192.0.2.1:51820 lies in the pods 192.0.2.0/24 of node n1"},
	} {
		got, _, err := Export(c.nodes, c.cfg)
		text := fmt.Sprint(err)
		if err == nil && len(got) == 1 && got[0].Name == c.cfg.Gateway && got[0].Endpoint.IsValid() {
			text = fmt.Sprint(got[0].AllowedIPs)
		}
		if text != c.want {
			t.Errorf("%s: got %s, want %s", c.cfg.Gateway, text, c.want)
		}
	}
}

func TestExportsThatNodesWouldRefuseAreFound(t *testing.T) {
	nodes := []Node{node(1), node(2, func(n *Node) { n.OptOut = true })}
	older := external(0, "laptop", "10.245.3.0/24")
	older.Created = exported(3).Created.Add(-1)
	for _, c := range []struct {
		name string
		all  []ExternalPeer
		want string
	}{
		{"another cluster", []ExternalPeer{exported(3, "10.245.3.0/24")}, ""},
		{"pods of a node", []ExternalPeer{exported(3, "10.244.1.0/24")}, "n3: its allowed IP 10.244.1.0/24 overlaps the pods of node n1"},
		{"pods of a node that opted out", []ExternalPeer{exported(3, "10.244.2.0/24")}, "n3: its allowed IP 10.244.2.0/24 overlaps the pods of node n2"},
		{"an address of a node", []ExternalPeer{exported(3, "192.0.2.0/24")}, "n3: its allowed IP 192.0.2.0/24 overlaps an address of node n1"},
		{
			"a peer that is there",
			[]ExternalPeer{older, exported(3, "10.245.3.0/24")},
			"n3: its allowed IP 10.245.3.0/24 is an allowed IP of the older RopewalkPeer laptop",
		},
		{"a refused peer that is there", []ExternalPeer{external(-1, "laptop", "10.244.1.0/24"), exported(3, "10.245.3.0/24")}, ""},
	} {
		for i := range nodes { // whichever comes first
			var got []string
			refused, err := RefusedExports([]Node{nodes[i], nodes[1-i]}, c.all, func(name string) bool { return name == "n3" })
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range refused {
				got = append(got, r.Peer+": "+r.Reason)
			}
			if text := strings.Join(got, "; "); text != c.want {
				t.Errorf("%s: got %q, want %q", c.name, text, c.want)
			}
		}
	}
	if got, err := RefusedExports(nil, []ExternalPeer{exported(3)}, func(string) bool { return true }); got != nil || err != nil {
		t.Errorf("a cluster without nodes refuses %v, %v", got, err)
	}
}
