// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// TestAllPeerNodesAreFacts has more nodes than peers whose path MTU is looked up, a peer that is no node, and a node with two addresses of an IP version.
func TestAllPeerNodesAreFacts(t *testing.T) {
	const nodes = maxPeers + 2
	st := config.Status{FwMark: NodeTrafficMark}
	for i := range nodes + 1 {
		addr := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		p := config.PeerStatus{Endpoint: config.Endpoint{AddrPort: netip.AddrPortFrom(addr, 51820)}}
		if i > 0 {
			p.AllowedIPs = []netip.Prefix{netip.PrefixFrom(addr, 32)}
		}
		st.Peers = append(st.Peers, p)
	}
	both := &st.Peers[nodes]
	both.AllowedIPs = append(both.AllowedIPs, netip.MustParsePrefix("198.19.0.1/32"), netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("10.244.1.0/24"))
	var with, without Tunnel
	with.setStatus(st)
	st.FwMark = 0
	without.setStatus(st)
	if len(with.Nodes) != nodes+1 || len(with.Peers) != maxPeers || len(without.Nodes) != 0 {
		t.Errorf("got %d nodes and %d peers, %d nodes without the mark, want %d, %d, 0", len(with.Nodes), len(with.Peers), len(without.Nodes), nodes+1, maxPeers)
	}
}

// TestRoutesInPlaceOfDefaultRouteAreFacts has the rules of `ropewalk up`, by whose table packets of others than the tunnel are routed.
func TestRoutesInPlaceOfDefaultRouteAreFacts(t *testing.T) {
	namespace.Enter(t)
	for _, name := range []string{"wg0", "u0"} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-end"}); err != nil {
			t.Skipf("needs veth links: %v", err)
		}
		expect.NoError(t, hostnet.SetLinkUp(name+"-end", 1420))
		expect.NoError(t, hostnet.SetLinkUp(name, 1420))
	}
	all, half := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("128.0.0.0/1")
	expect.NoError(t, hostnet.AddRoute(hostnet.Route{Dst: all, Link: "wg0", Table: 51820}))
	expect.NoError(t, hostnet.AddRule(hostnet.Rule{Family: hostnet.IPv4, Table: 51820, NotMark: 51820}))
	expect.NoError(t, hostnet.AddRule(hostnet.Rule{Family: hostnet.IPv4, Table: hostnet.MainTable, SuppressDefault: true}))
	for n, add := range []func() error{
		func() error { return nil },
		func() error { return hostnet.AddRoute(hostnet.Route{Dst: half, Link: "u0"}) },
	} {
		expect.NoError(t, add())
		tunnels := []Tunnel{{Name: "wg0", Mark: 51820}, {Name: "u0", Mark: 7}}
		readReplaced(tunnels)
		got := tunnels[0].Replaced
		if got.Err != nil || len(got.Value) != n || n > 0 && (got.Value[0].Dst != half || got.Value[0].Link.Name != "u0") {
			t.Errorf("with %d routes: got %+v", n, got)
		}
		if other := tunnels[1].Replaced; other.Err != nil || len(other.Value) > 0 {
			t.Errorf("a tunnel without default route: got %+v, want none", other)
		}
	}
}

func TestLinkLocalPeerLeadsToNICOfItsScope(t *testing.T) {
	here, scopes := netlabtest.LinkLocal(t, "facts")
	for device, scope := range scopes {
		endpoint := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::2]:51820"), Scope: scope}
		var got []candidate
		err := here.Do(func() error {
			var tunnel Tunnel
			tunnel.setStatus(config.Status{Peers: []config.PeerStatus{{Endpoint: endpoint}}})
			got = underlayDevices([]Tunnel{tunnel})
			return nil
		})
		if err != nil || len(got) != 1 || got[0].device != device {
			t.Errorf("got %+v, %v, want %s", got, err, device)
		}
	}
}
