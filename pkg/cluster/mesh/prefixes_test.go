// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func randomPrefixes(r *rand.Rand, most, bits int) (all []netip.Prefix) {
	for range r.IntN(most) {
		a := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(r.IntN(256))})
		all = append(all, netip.PrefixFrom(a, bits+r.IntN(33-bits)).Masked())
	}
	slices.SortFunc(all, comparePrefixes)
	return slices.Compact(all)
}

// TestExemptionsLieWithinRoutes compares with a check of each route.
func TestExemptionsLieWithinRoutes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		routes, all := randomPrefixes(r, 6, 22), randomPrefixes(r, 12, 24)
		var want []netip.Prefix
		for _, p := range all {
			if slices.ContainsFunc(routes, func(o netip.Prefix) bool { return contains(o, p) }) {
				want = append(want, p)
			}
		}
		if diff := cmp.Diff(want, within(routes, all), equal); diff != "" {
			t.Fatalf("of %v in %v: -want +got\n%s", all, routes, diff)
		}
	}
}

// nodesWithOneMalicious returns nodes of which one claims as much of the others as its status can hold.
func nodesWithOneMalicious(n int) []Node {
	nodes := cluster(n, ModeMesh)
	liar := &nodes[n-1]
	liar.Created = time.Unix(1<<40, 0)
	liar.PodCIDRs = nil
	for i := range n {
		liar.PodCIDRs = append(liar.PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), 0, 0}), 16))
		liar.Addrs = append(liar.Addrs, netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 10}))
	}
	return nodes
}

func TestPodPrefixesOfNodeAreBounded(t *testing.T) {
	nodes := cluster(2, ModeMesh)
	nodes[1].PodCIDRs = nil
	for i := range 3 * maxPodPrefixes {
		nodes[1].PodCIDRs = append(nodes[1].PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 32))
	}
	plan, err := Tunnel(nodes[0].Name, nodes, TunnelConfig{})
	if err != nil || len(plan.Peers) != 1 || len(plan.Routes) != maxPodPrefixes {
		t.Fatal(len(plan.Routes), plan.Peers, err)
	}
	want := Problem{nodes[1].Name, "it has 3072 pod prefixes, of which the first 1024 are used"}
	if !slices.Contains(plan.Problems, want) {
		t.Errorf("got %v, want %v among them", plan.Problems, want)
	}
}

func TestMaliciousNodeClaimsNothing(t *testing.T) {
	const n = 600
	plan, err := Tunnel("node-0", nodesWithOneMalicious(n), TunnelConfig{Pods: prefixesOf("10.0.0.0/8")})
	if err != nil || len(plan.Peers) != n-1 {
		t.Fatal(len(plan.Peers), err)
	}
	name, exempt := fmt.Sprintf("node-%d", n-1), 0
	for _, p := range plan.Peers {
		own := len(p.AllowedIPs)
		if p.Node == name && own > maxAddrs || p.Node != name && own != 2 {
			t.Errorf("%s: got %v", p.Node, p.AllowedIPs)
		}
	}
	for _, e := range plan.Exempt {
		if e.IsSingleIP() {
			exempt++
		}
	}
	if exempt != 0 {
		t.Errorf("%d pods' addresses are excepted", exempt)
	}
}

func BenchmarkTunnelOf5000NodesOneMalicious(b *testing.B) {
	nodes := nodesWithOneMalicious(5000)
	cfg := TunnelConfig{Pods: prefixesOf("10.0.0.0/8")}
	for b.Loop() {
		if p, err := Tunnel("node-0", nodes, cfg); err != nil || len(p.Peers) != 4999 {
			b.Fatal(len(p.Peers), err)
		}
	}
}
