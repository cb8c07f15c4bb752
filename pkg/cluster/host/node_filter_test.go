// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
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
		if _, err := (System{}).SetRoutes("tunnel", r); err != nil {
			return err
		}
		for _, changes := range []int{1, 0} {
			if n, err := (System{}).SetPlaintextFilter("tunnel", true, r.Nodes); err != nil || n != changes {
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
			{"multicast, as VRRP", "eth9", other, "224.0.0.1", 3, 4, false, "local", true},
			{"IPv6 multicast, as neighbor solicitations", "eth9", "2001:db8:9::2", "ff02::1", 3, 4, false, "local", true},
		} {
			if err := c.check(); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		r.Nodes.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:9::/64")}
		if n, err := (System{}).SetPlaintextFilter("tunnel", true, r.Nodes); err != nil || n != 1 {
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
		if n, err := (System{}).SetPlaintextFilter("tunnel", true, nil); err != nil || n != 1 {
			t.Errorf("without nodes: %d changes, %v", n, err)
		}
		c := filterCase{"no filter for nodes", "eth9", other, own, 3, 4, false, "local", true}
		return c.check()
	})
}

// TestFilterDropsConnectionsFromExemptPorts: anybody can send from a port that others' answers have.
func TestFilterDropsConnectionsFromExemptPorts(t *testing.T) {
	const fin, syn, rst, ack = 0x01, tcpSYN, 0x04, tcpACK
	inNamespace(t, func() error {
		r := nodeRouting()
		err := errors.Join(addNodeWithTunnel(), setSysctl("ipv4/conf/all/rp_filter", "0"), setSysctl("ipv4/conf/eth9/rp_filter", "0"), addLocalCounter())
		if err == nil {
			_, err = (System{}).SetRoutes("tunnel", r)
		}
		if err == nil {
			_, err = (System{}).SetPlaintextFilter("tunnel", true, r.Nodes)
		}
		if err != nil {
			return err
		}
		for _, c := range []segment{
			{"to BGP", "192.0.2.2", 40000, 179, syn, true},
			{"from the port of BGP", "192.0.2.2", 179, 40000, syn, false},
			{"from the port of BGP to BGP", "192.0.2.2", 179, 179, syn, true},
			{"answer of BGP", "192.0.2.2", 179, 40000, syn | ack, true},
			{"data of BGP", "192.0.2.2", 179, 40000, ack, true},
			{"reset of BGP", "192.0.2.2", 179, 40000, rst, true},
			{"from the port of BGP, with FIN", "192.0.2.2", 179, 40000, syn | fin, false},
			{"from the port of the API server", "192.0.2.3", 6443, 40000, syn, false},
			{"answer of the API server", "192.0.2.3", 6443, 40000, syn | ack, true},
			{"to the kubelet from the API server", "192.0.2.3", 40000, 10250, syn, true},
			{"to the kubelet from another node", "192.0.2.2", 40000, 10250, syn, false},
			{"to a member of etcd that joins", "192.0.2.3", 40000, 2380, syn, true},
			{"to etcd from another node", "192.0.2.2", 40000, 2380, syn, false},
			{"from a port in mesh.clearPorts", "192.0.2.2", 53, 40000, syn, false},
			{"answer of a port in mesh.clearPorts", "192.0.2.2", 53, 40000, syn | ack, true},
			{"to a port in mesh.clearPorts", "192.0.2.2", 40000, 53, syn, true},
		} {
			if err := checkPassage("eth9", c.frame, "local", c.passes); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		return nil
	})
}

// segment is a TCP segment to 192.0.2.1, and whether it reaches that.
type segment struct {
	what         string
	src          string
	sport, dport uint16
	flags        byte
	passes       bool
}

func (s segment) frame(to, from net.HardwareAddr) []byte {
	src, dst := netip.MustParseAddr(s.src), netip.MustParseAddr("192.0.2.1")
	tcp := binary.BigEndian.AppendUint16(nil, s.sport)
	tcp = binary.BigEndian.AppendUint16(tcp, s.dport)
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 1, 5<<4, s.flags, 1, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(tcp[16:], checksum(slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, 20}, tcp)))
	ip := slices.Concat([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return slices.Concat([]byte(to), []byte(from), []byte{0x08, 0x00}, ip, tcp)
}

// addLocalCounter counts the UDP and TCP packets that the host receives.
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
	for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchProtocol(protocol), &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: "local"})})
	}
	return c.Flush()
}
