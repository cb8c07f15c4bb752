// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TestFilterDropsPlaintextToNode has the packets of other nodes and their pods arrive unencrypted at an address of the node.
func TestFilterDropsPlaintextToNode(t *testing.T) {
	const own, other, api, pod = "192.0.2.1", "192.0.2.2", "192.0.2.3", "10.244.2.10"
	inNamespace(t, func() error {
		r := nodeRouting()
		err := errors.Join(addNodeWithTunnel(), setSysctl("ipv4/conf/all/rp_filter", "0"), setSysctl("ipv4/conf/eth9/rp_filter", "0"),
			setSysctl("ipv4/conf/tunnel/rp_filter", "0"), addLocalCounter())
		if err != nil {
			return err
		}
		r.Routes = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}
		if _, err := applyRouting("tunnel", r); err != nil {
			return err
		}
		for _, changes := range []int{1, 0} {
			if n, err := setPlaintextFilter("tunnel", true, r.Nodes); err != nil || n != changes {
				t.Errorf("%d changes, %v, want %d", n, err, changes)
			}
		}
		for _, c := range []filterCase{
			{"through the tunnel", "tunnel", other, own, 1, 2, false, "local", true},
			{"from a node in the clear", "eth9", other, own, 3, 4, false, "local", false},
			{"from a pod in the clear", "eth9", pod, own, 3, 4, false, "local", false},
			{"from elsewhere", "eth9", "198.51.100.7", own, 3, 4, false, "local", true},
			{"the tunnel's messages", "eth9", other, own, 51820, 51820, false, "local", true},
			{"spread messages of the tunnel", "eth9", other, own, 61001, 51820, false, "local", true},
			{"messages to a port of the tunnel that spreads", "eth9", other, own, 51820, 61001, false, "local", true},
			{"from the port of the tunnel", "eth9", other, own, 51820, 9, false, "local", false},
			{"an exempt port", "eth9", other, own, 40000, 53, false, "local", true},
			{"answers of an exempt port", "eth9", other, own, 53, 40000, false, "local", true},
			{"the API server's port, in UDP", "eth9", api, own, 6443, 40000, false, "local", false},
			{"IPv6 in the clear", "eth9", "2001:db8:9::2", "2001:db8:9::1", 3, 4, false, "local", false},
			{"IPv6 through the tunnel", "tunnel", "2001:db8:9::2", "2001:db8:9::1", 3, 4, false, "local", true},
		} {
			if err := c.check(); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		r.Nodes.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:9::/64")}
		if n, err := setPlaintextFilter("tunnel", true, r.Nodes); err != nil || n != 1 {
			t.Errorf("with sources: %d changes, %v", n, err)
		}
		for _, c := range []filterCase{
			{"from a node", "eth9", other, own, 3, 4, false, "local", false},
			{"from a node, IPv6", "eth9", "2001:db8:9::2", "2001:db8:9::1", 3, 4, false, "local", false},
			{"from a pod of a node that does not take part", "eth9", pod, own, 3, 4, false, "local", true},
		} {
			if err := c.check(); err != nil {
				t.Errorf("with sources, %s: %v", c.what, err)
			}
		}
		if n, err := setPlaintextFilter("tunnel", true, nil); err != nil || n != 1 {
			t.Errorf("without nodes: %d changes, %v", n, err)
		}
		c := filterCase{"no filter for nodes", "eth9", other, own, 3, 4, false, "local", true}
		return c.check()
	})
}

// addLocalCounter counts the UDP packets that the host receives.
func addLocalCounter() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(countTable())
	chain := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	c.AddObj(&nftables.CounterObj{Table: table, Name: "local"})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchProtocol(unix.IPPROTO_UDP), &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: "local"})})
	return c.Flush()
}
