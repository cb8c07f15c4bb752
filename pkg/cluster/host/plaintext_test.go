// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestPlaintextFilterIsInstalledOnce(t *testing.T) {
	inNamespace(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.AddTable(&nftables.Table{Name: "foreign", Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil {
			return err
		}
		for _, step := range []struct {
			what    string
			tunnel  string
			wanted  bool
			changes int
		}{
			{"nothing to remove", "tunnel", false, 0},
			{"installed", "tunnel", true, 1},
			{"again", "tunnel", true, 0},
			{"for a tunnel of another name", "other", true, 1},
			{"removed", "other", false, 1},
			{"removed twice", "other", false, 0},
		} {
			if n, err := (System{}).SetPlaintextFilter(step.tunnel, step.wanted, nil); err != nil || n != step.changes {
				t.Errorf("%s: %d changes, %v, want %d", step.what, n, err, step.changes)
			}
			if n := PlaintextDropped(); n != 0 {
				t.Errorf("%s: %d packets", step.what, n)
			}
		}
		tables, err := c.ListTables()
		if len(tables) != 1 || tables[0].Name != "foreign" {
			t.Errorf("left: %v", tables)
		}
		return err
	})
}

// TestFilterOfOtherVersionIsReplaced has a rule that another version of the agent installed.
func TestFilterOfOtherVersionIsReplaced(t *testing.T) {
	inNamespace(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Name: FilterTable, Family: nftables.TableFamilyINet})
		chain := c.AddChain(&nftables.Chain{
			Name: filterChain, Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
		})
		exprs := filterExprs("tunnel")
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, UserData: []byte("tunnel"), Exprs: exprs[len(exprs)-1:]}) // drops everything
		if err := c.Flush(); err != nil {
			return err
		}
		for _, want := range []int{1, 0} {
			if n, err := (System{}).SetPlaintextFilter("tunnel", true, nil); err != nil || n != want {
				t.Errorf("%d changes, %v, want %d", n, err, want)
			}
		}
		return nil
	})
}

// filterCase is a packet that arrives at a node, and whether its payload reaches the pod or the tunnel.
type filterCase struct {
	what             string
	device, src, dst string // the device that it arrives on
	sport, dport     uint16
	badChecksum      bool // conntrack calls it invalid
	out              string
	passes           bool
}

// TestFilterDropsPlaintext has the packets of other nodes' pods arrive unencrypted: with and without connection tracking, and as
// answers to connections through a Service.
func TestFilterDropsPlaintext(t *testing.T) {
	const own, remote, external, node = "10.244.1.5", "10.244.2.10", "198.51.100.7", "192.0.2.1"
	inNamespace(t, func() error {
		if err := addFilteredNode(); err != nil {
			return err
		}
		for _, c := range []filterCase{
			{"through the tunnel", "tunnel", remote, own, 1, 2, false, "pod1", true},
			{"in the clear", "eth9", remote, own, 3, 4, false, "pod1", false},
			{"in the clear, invalid to conntrack", "eth9", remote, own, 5, 6, true, "pod1", false},
			{"in the clear, not tracked", "eth9", remote, own, 7, untrackedPort, false, "pod1", false},
			{"in the clear to a Service", "eth9", remote, serviceAddr, 9, 80, false, "pod1", false},
			{"in the clear to a node port", "eth9", remote, node, 9, 80, false, "pod1", true},
			{"in the clear to a Service's address that the node has", "eth9", remote, ownServiceAddr, 9, 80, false, "pod1", true},
			{"in the clear to elsewhere, through this node", "eth9", remote, external, 9, 10, false, "pod1", false},
			{"from elsewhere", "eth9", external, own, 11, 12, false, "pod1", true},
			{"to a Service", "pod1", own, serviceAddr, 13, 81, false, "tunnel", true},
			{"answer of a Service, in the clear", "eth9", remote, own, 81, 13, false, "pod1", false},
			{"answer of a Service through the tunnel", "tunnel", remote, own, 81, 13, false, "pod1", true},
			{"from the pod", "pod1", own, remote, 15, 16, false, "tunnel", true},
			{"IPv6 through the tunnel", "tunnel", "2001:db8:2::10", "2001:db8:1::5", 1, 2, false, "pod1", true},
			{"IPv6 in the clear", "eth9", "2001:db8:2::10", "2001:db8:1::5", 3, 4, false, "pod1", false},
			{"IPv6 from elsewhere", "eth9", "2001:db8:ffff::1", "2001:db8:1::5", 3, 4, false, "pod1", true},
		} {
			if err := c.check(); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		return nil
	})
}

// serviceAddr is a Service's address. Port 80 of it, and of the node, leads to the pod, and port 81 to another node's pod. Packets for
// untrackedPort are not tracked. ownServiceAddr is an address of the node, as with kube-proxy's mode IPVS.
const (
	serviceAddr    = "10.96.0.1"
	ownServiceAddr = "10.96.0.2"
	untrackedPort  = 8
)

// addFilteredNode makes the namespace a node with a pod, a tunnel, a filter and a Service.
func addFilteredNode() error {
	err := errors.Join(
		addLink("eth9", "192.0.2.1/24"), addLink("tunnel", "10.244.1.0/32"), addLink("pod1", "10.244.1.1/24"),
		addAddr("pod1", ownServiceAddr+"/32"), addAddr("eth9", "2001:db8:9::1/64"), addAddr("pod1", "2001:db8:1::1/64"),
		addNeighbor("pod1", "10.244.1.5"), addNeighbor("pod1", "2001:db8:1::5"), addNeighbor("eth9", "192.0.2.2"), addNeighbor("eth9", "2001:db8:9::2"),
		addNeighbor("tunnel", "10.244.2.10"), addDefaultRoute("eth9", "192.0.2.2"), addDefaultRoute("eth9", "2001:db8:9::2"),
		setSysctl("ipv4/ip_forward", "1"), setSysctl("ipv6/conf/all/forwarding", "1"),
		setSysctl("ipv4/conf/all/rp_filter", "0"), setSysctl("ipv4/conf/eth9/rp_filter", "0"), setSysctl("ipv4/conf/pod1/rp_filter", "0"),
	)
	if err != nil {
		return err
	}
	r := &Routing{Routes: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("2001:db8:2::/64")}}
	if _, err := (System{}).SetRoutes("tunnel", r); err != nil {
		return err
	}
	if _, err := (System{}).SetPlaintextFilter("tunnel", true, nil); err != nil {
		return err
	}
	return errors.Join(addService(), addForwardCounters())
}

// addService has a Service and a node port as kube-proxy does, and exempts a port from connection tracking, as some plugins do.
func addService() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "service", Family: nftables.TableFamilyIPv4})
	raw := c.AddChain(&nftables.Chain{
		Name: "raw", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: raw, Exprs: append(matchUDPPort(untrackedPort), &expr.Notrack{})})
	nat := c.AddChain(&nftables.Chain{
		Name: "nat", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	for port, to := range map[uint16]string{80: "10.244.1.5", 81: "10.244.2.10"} {
		c.AddRule(&nftables.Rule{Table: table, Chain: nat, Exprs: append(matchUDPPort(port),
			&expr.Immediate{Register: 1, Data: netip.MustParseAddr(to).AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1})})
	}
	return c.Flush()
}

func matchUDPPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
	}
}

// check sends the packet and compares the device that it leaves by.
func (c filterCase) check() error { return checkPassage(c.device, c.frame, c.out, c.passes) }

// checkPassage sends a frame to a device and compares whether it is counted as out.
func checkPassage(device string, frame func(to, from net.HardwareAddr) []byte, out string, passes bool) error {
	dropped, sent := PlaintextDropped(), forwarded(out)
	if err := inject(device, frame); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		passed, counted := forwarded(out) > sent, PlaintextDropped() > dropped
		switch {
		case passed != counted && passed == passes:
			return nil
		case passed != counted:
			return fmt.Errorf("passed %v, want %v", passed, passes)
		case time.Now().After(deadline):
			return fmt.Errorf("passed %v, dropped by the filter %v", passed, counted)
		}
	}
}

// inject sends a frame to a device from its other end.
func inject(device string, frame func(to, from net.HardwareAddr) []byte) error {
	to, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	from, err := netlink.LinkByName(device + "-far")
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, frame(to.Attrs().HardwareAddr, from.Attrs().HardwareAddr), 0, &unix.SockaddrLinklayer{Ifindex: from.Attrs().Index})
}

// frame returns the packet: UDP with a payload of four bytes.
func (c filterCase) frame(to, from net.HardwareAddr) []byte {
	src, dst := netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst)
	udp := binary.BigEndian.AppendUint16(nil, c.sport)
	udp = binary.BigEndian.AppendUint16(udp, c.dport)
	udp = append(udp, 0, 12, 0, 0, 'd', 'a', 't', 'a')
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, unix.IPPROTO_UDP, 0, 12}, udp)
	sum := checksum(pseudo)
	if c.badChecksum {
		sum ^= 0x5555
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	frame := slices.Concat([]byte(to), []byte(from))
	if src.Is4() {
		ip := slices.Concat([]byte{0x45, 0, 0, 32, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, src.AsSlice(), dst.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		return slices.Concat(frame, []byte{0x08, 0x00}, ip, udp)
	}
	return slices.Concat(frame, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, unix.IPPROTO_UDP, 64}, src.AsSlice(), dst.AsSlice(), udp)
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// addForwardCounters counts the UDP packets that the host forwards to the pod and into the tunnel. Devices count the kernel's own packets, too.
func addForwardCounters() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(countTable())
	chain := c.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	for _, device := range []string{"pod1", "tunnel"} {
		c.AddObj(&nftables.CounterObj{Table: table, Name: device})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: deviceName(device)},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: device},
		}})
	}
	return c.Flush()
}

func countTable() *nftables.Table {
	return &nftables.Table{Name: "count", Family: nftables.TableFamilyINet}
}

// forwarded returns the number of UDP packets forwarded to a device.
func forwarded(device string) uint64 {
	c, err := nftables.New()
	if err != nil {
		return 0
	}
	obj, err := c.GetObject(&nftables.CounterObj{Table: countTable(), Name: device})
	if err != nil {
		return 0
	}
	return obj.(*nftables.CounterObj).Packets
}

func addAddr(device, text string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	return netlink.AddrAdd(l, a)
}

func addNeighbor(device, text string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.NeighAdd(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(text), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	})
}

func addDefaultRoute(device, gateway string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gateway)})
}

func setSysctl(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}
