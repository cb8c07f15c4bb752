// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// cluster returns n nodes.
func cluster(n int, mode Mode) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		hi, lo := byte(i>>8), byte(i)
		addr := netip.AddrFrom4([4]byte{172, 16, hi, lo})
		nodes[i] = Node{
			Name: fmt.Sprintf("node-%d", i), Created: time.Unix(int64(i%7), 0), Addrs: []netip.Addr{addr},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, hi, lo, 0}), 24)},
			Agent: &Agent{
				Mode: mode, Key: noise.PublicKey{lo, hi, 1}, Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, port)},
				Ports: spread.DefaultPorts, Gathers: true,
			},
		}
	}
	return nodes
}

func BenchmarkTunnelOf5000Nodes(b *testing.B) {
	nodes := cluster(5000, ModeMesh)
	cfg := TunnelConfig{Bypass: []netip.Addr{netip.MustParseAddr("172.31.0.1")}, Pods: prefixesOf("10.0.0.0/8")}
	for b.Loop() {
		if p, err := Tunnel("node-0", nodes, cfg); err != nil || len(p.Peers) != 4999 || len(p.Problems) > 0 {
			b.Fatal(len(p.Peers), err, len(p.Problems))
		}
	}
}

func BenchmarkTunnelWith5000ExternalPeers(b *testing.B) {
	nodes := cluster(2, ModeMesh)
	var external []ExternalPeer
	for _, n := range cluster(5002, ModeMesh)[2:] {
		external = append(external, ExternalPeer{Name: n.Name, Key: n.Agent.Key, AllowedIPs: n.PodCIDRs, Endpoint: n.Agent.Endpoints[0], Selected: true})
	}
	for b.Loop() {
		if p, err := Tunnel("node-0", nodes, TunnelConfig{External: external}); err != nil || len(p.Routes) != 5001 || len(p.Refused) > 0 {
			b.Fatal(len(p.Routes), err, len(p.Refused))
		}
	}
}

func BenchmarkSpreadOf5000Nodes(b *testing.B) {
	nodes := cluster(5000, ModeSpread)
	for b.Loop() {
		if p := Spread("node-0", nodes, true); len(p.Peers) != 4999 {
			b.Fatal(len(p.Peers))
		}
	}
}

func BenchmarkDiffOf5000NodesThatAreThere(b *testing.B) {
	plan, err := Tunnel("node-0", cluster(5000, ModeMesh), TunnelConfig{})
	if err != nil {
		b.Fatal(err)
	}
	have, sent := apply(nil, Diff(plan.Peers, nil, nil)), SentEndpoints{}
	for b.Loop() {
		if c := Diff(plan.Peers, have, sent); len(c) > 0 {
			b.Fatal(len(c))
		}
	}
}
