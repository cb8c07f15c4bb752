// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"slices"
	"testing"
)

// TestNodeRoutesLeadToPeersThatEncrypt has nodes in all states: a peer that takes part, one that does not, one without a key, one that opted
// out, one with another endpoint, and one that claims a resolver's address.
func TestNodeRoutesLeadToPeersThatEncrypt(t *testing.T) {
	nodes := []Node{
		encryptingNode(0), encryptingNode(1), encryptingNode(2), encryptingNode(3), encryptingNode(4), encryptingNode(5), encryptingNode(6),
	}
	nodes[2].Agent.EncryptsNodes = false
	nodes[3].Agent = nil
	nodes[4].OptOut = true
	nodes[5].Endpoint = netip.MustParseAddr("198.51.100.5")
	nodes[6].Addrs = append(nodes[6].Addrs, netip.MustParseAddr("9.9.9.9"))
	cfg := TunnelConfig{Cleartext: true, Nodes: NodeTraffic{Encrypt: true, Within: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	for _, c := range []struct {
		what      string
		cleartext bool
		routes    []string
	}{{"permissive", true, []string{"192.0.2.1/32", "192.0.2.6/32"}}, {"strict", false, []string{"192.0.2.1/32", "192.0.2.3/32", "192.0.2.6/32"}}} {
		cfg.Cleartext = c.cleartext
		p, err := Tunnel(nodes[0].Name, nodes, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range p.NodeRoutes {
			got = append(got, r.String())
		}
		if !slices.Equal(got, c.routes) {
			t.Errorf("%s: routes %v, want %v", c.what, got, c.routes)
		}
		if want := []string{nodes[2].Name, nodes[5].Name, nodes[6].Name}; !slices.Equal(p.ClearNodes, want) {
			t.Errorf("%s: in the clear %v, want %v", c.what, p.ClearNodes, want)
		}
		if p.MTU[netip.MustParsePrefix("192.0.2.1/32")] != 1400 {
			t.Errorf("%s: MTU %v", c.what, p.MTU)
		}
	}
	cfg.Nodes.Encrypt = false
	if p, err := Tunnel(nodes[0].Name, nodes, cfg); err != nil || len(p.NodeRoutes) > 0 || len(p.ClearNodes) > 0 {
		t.Errorf("not wanted: %v, %v, %v", p.NodeRoutes, p.ClearNodes, err)
	}
}

// encryptingNode returns the i-th node.
func encryptingNode(i byte) Node {
	n := node(i)
	n.Agent.EncryptsNodes, n.Agent.MTU = true, 1400
	return n
}
