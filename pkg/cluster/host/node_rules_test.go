// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

// protocolNumbers is for machines without /etc/protocols.
var protocolNumbers = strings.NewReplacer("ipproto tcp", "ipproto 6", "ipproto udp", "ipproto 17", "ipproto icmp", "ipproto 1")

// route asks the kernel by which device a packet leaves. flow has what `ip route get` accepts behind the address.
func route(t *testing.T, to, flow string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"route", "get", to}, strings.Fields(protocolNumbers.Replace(flow))...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", to, flow, err, out)
	}
	_, rest, _ := strings.Cut(string(out), " dev ")
	device, _, _ := strings.Cut(rest, " ")
	return device
}

// addNodeWithTunnel makes the namespace a node with a tunnel.
func addNodeWithTunnel() error {
	return errors.Join(addLink("eth9", "192.0.2.1/24"), addAddr("eth9", "2001:db8:9::1/64"), addLink("tunnel", "10.244.1.0/32"), addLink("pod1", "10.244.1.1/24"),
		setSysctl("ipv4/ip_forward", "1"))
}

func TestDoctorKnowsTunnelMark(t *testing.T) {
	if facts.NodeTrafficMark != TunnelMark {
		t.Errorf("doctor takes %#x for the mark, want %#x", facts.NodeTrafficMark, TunnelMark)
	}
}

func nodeRouting() *Routing {
	return &Routing{Nodes: &NodeRouting{
		Routes: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("192.0.2.3/32"), netip.MustParsePrefix("2001:db8:9::2/128")},
		Own:    []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:9::1")},
		API:    []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:6443"), netip.MustParseAddrPort("[2001:db8:9::2]:6443")},
		Clear:  []ClearPort{{netip.MustParsePrefix("192.0.2.0/24"), 53}},
		Ports:  []PortRange{{51820, 51820}, {61000, 61999}},
	}}
}

func TestTrafficBetweenNodesEntersTunnel(t *testing.T) {
	inNamespace(t, func() error {
		if err := addNodeWithTunnel(); err != nil {
			return err
		}
		r := nodeRouting()
		for _, changed := range []bool{true, false} {
			if n, err := (System{}).SetRoutes("tunnel", r); err != nil || (n > 0) != changed {
				t.Errorf("got %d changes, error %v, want changes %v", n, err, changed)
			}
		}
		for _, c := range []struct{ what, to, flow, device string }{
			{"ICMP", "192.0.2.2", "", "tunnel"},
			{"TCP", "192.0.2.2", "ipproto tcp sport 40000 dport 80", "tunnel"},
			{"a port of the API server on another node", "192.0.2.2", "ipproto tcp sport 40000 dport 6443", "tunnel"},
			{"IPv6", "2001:db8:9::2", "ipproto tcp sport 40000 dport 80", "tunnel"},
			{"from a pod", "192.0.2.2", "from 10.244.1.5 iif pod1 ipproto tcp sport 40000 dport 80", "tunnel"},
			{"from a pod's port 51820", "192.0.2.2", "from 10.244.1.5 iif pod1 ipproto udp sport 51820 dport 80", "tunnel"},
			{"another host", "192.0.2.9", "ipproto tcp sport 40000 dport 80", "eth9"},

			{"the API server", "192.0.2.3", "ipproto tcp sport 40000 dport 6443", "eth9"},
			{"the API server over IPv6", "2001:db8:9::2", "ipproto tcp sport 40000 dport 6443", "eth9"},
			{"the API server, from a pod", "192.0.2.3", "from 10.244.1.5 iif pod1 ipproto tcp sport 40000 dport 6443", "eth9"},
			{"answers of the kubelet", "192.0.2.3", "ipproto tcp sport 10250 dport 40000", "eth9"},
			{"etcd", "192.0.2.3", "ipproto tcp sport 40000 dport 2380", "eth9"},
			{"answers of a member of etcd that joins", "192.0.2.3", "ipproto tcp sport 2380 dport 40000", "eth9"},
			{"the tunnel's messages", "192.0.2.2", "mark 0x52 ipproto udp sport 40000 dport 51820", "eth9"},
			{"the tunnel's messages, to rp_filter", "192.0.2.2", "ipproto udp sport 61001 dport 51820", "eth9"},
			{"BGP", "192.0.2.2", "ipproto tcp sport 40000 dport 179", "eth9"},
			{"answers of BGP", "192.0.2.2", "ipproto tcp sport 179 dport 40000", "eth9"},
			{"an exempt port", "192.0.2.2", "ipproto udp sport 40000 dport 53", "eth9"},
			{"answers of an exempt port", "192.0.2.2", "ipproto udp sport 53 dport 40000", "eth9"},
			{"the kubelet, which this node does not ask", "192.0.2.2", "ipproto tcp sport 40000 dport 10250", "tunnel"},
		} {
			if got := route(t, c.to, c.flow); got != c.device {
				t.Errorf("%s: to %s %s by %s, want %s", c.what, c.to, c.flow, got, c.device)
			}
		}
		return nil
	})
}

func TestControlPlaneNodeAnswersInTheClear(t *testing.T) {
	inNamespace(t, func() error {
		if err := addNodeWithTunnel(); err != nil {
			return err
		}
		r := nodeRouting()
		r.Nodes.API = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443"), netip.MustParseAddrPort("192.0.2.3:6443")}
		if _, err := (System{}).SetRoutes("tunnel", r); err != nil {
			return err
		}
		for flow, device := range map[string]string{
			"ipproto tcp sport 6443 dport 40000":                           "eth9",
			"ipproto tcp dport 10250":                                      "eth9", // before the socket has an address
			"ipproto tcp sport 2379 dport 40000":                           "eth9",
			"ipproto tcp dport 2380":                                       "eth9", // to a member of etcd that joins
			"ipproto tcp sport 40000 dport 2379":                           "tunnel",
			"ipproto tcp sport 40000 dport 80":                             "tunnel",
			"from 10.244.1.5 iif pod1 ipproto tcp sport 6443 dport 40000":  "tunnel",
			"from 10.244.1.5 iif pod1 ipproto tcp sport 40000 dport 10250": "tunnel",
			"from 192.0.2.1 ipproto tcp sport 6443 dport 40000":            "eth9",
			"from 192.0.2.1 ipproto udp sport 6443 dport 40000":            "tunnel",
			"from 192.0.2.1 mark 0x52 ipproto udp sport 51820 dport 51820": "eth9",
			"from 192.0.2.1 ipproto udp sport 51820 dport 51820":           "eth9",
			"from 192.0.2.1 ipproto tcp sport 51820 dport 51820":           "tunnel",
			"from 192.0.2.1 ipproto tcp sport 40000 dport 6443":            "tunnel",
			"from 10.244.1.5 iif pod1 ipproto icmp":                        "tunnel",
			"from 10.244.1.5 iif pod1 ipproto udp sport 53 dport 40000":    "tunnel",
			"from 10.244.1.5 iif pod1 ipproto udp sport 40000 dport 53":    "eth9",
		} {
			if got := route(t, "192.0.2.2", flow); got != device {
				t.Errorf("%s: by %s, want %s", flow, got, device)
			}
		}
		return nil
	})
}

// TestServiceOfAPIServerStaysClear connects to the Service of the API server, as agents and pods on the host's network do. kube-proxy
// translates the address of packets that were routed already.
func TestServiceOfAPIServerStaysClear(t *testing.T) {
	if release, _ := kernel.Uname(); OldKernel(release) != "" {
		t.Skipf("needs Linux 6.1, not %s: agents encrypt nothing between nodes on it", release)
	}
	inNamespace(t, func() error {
		err := errors.Join(addNodeWithTunnel(), addNeighbor("eth9", "192.0.2.3"), addNeighbor("tunnel", "192.0.2.3"), addNeighbor("eth9", "192.0.2.9"),
			addDefaultRoute("eth9", "192.0.2.9"), translateOutput("10.96.0.1", "192.0.2.3", 6443))
		if err != nil {
			return err
		}
		for _, c := range []struct {
			port   uint16 // of the translated address
			device string
		}{{6443, "eth9"}, {8443, "tunnel"}} {
			if _, err := (System{}).SetRoutes("tunnel", nodeRouting()); err != nil {
				return err
			}
			if err := translateOutput("10.96.0.1", "192.0.2.3", c.port); err != nil {
				return err
			}
			before, err := sent(c.device)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			_, _ = new(net.Dialer).DialContext(ctx, "tcp", "10.96.0.1:443") // nobody answers
			cancel()
			if after, err := sent(c.device); err != nil || after == before {
				t.Errorf("port %d: nothing was sent by %s, %v", c.port, c.device, err)
			}
		}
		return nil
	})
}

// sent returns the number of TCP packets that a device has sent since translateOutput.
func sent(device string) (uint64, error) {
	c, err := nftables.New()
	if err != nil {
		return 0, err
	}
	o, err := c.GetObject(&nftables.CounterObj{Table: &nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4}, Name: device})
	if err != nil {
		return 0, err
	}
	return o.(*nftables.CounterObj).Packets, nil
}

// translateOutput translates the destination of the host's own packets, as kube-proxy does, and counts TCP packets by device.
func translateOutput(from, to string, port uint16) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	out := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: append(
		(&clearFlow{protocol: unix.IPPROTO_TCP, dst: netip.PrefixFrom(netip.MustParseAddr(from), 32)}).match(),
		&expr.Immediate{Register: 1, Data: netip.MustParseAddr(to).AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true})})
	post := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter})
	for _, device := range []string{"eth9", "tunnel"} {
		c.AddObj(&nftables.CounterObj{Table: table, Name: device})
		c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: append(matchProtocol(unix.IPPROTO_TCP),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: deviceName(device)},
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: device})})
	}
	return c.Flush()
}

// TestNodeRoutesWithoutTunnelKeepAPIPath has a node whose tunnel does not exist, and one that leaves.
func TestNodeRoutesWithoutTunnelKeepAPIPath(t *testing.T) {
	inNamespace(t, func() error {
		if err := addNodeWithTunnel(); err != nil {
			return err
		}
		r := nodeRouting()
		if _, err := (System{}).SetRoutes("missing", r); err != nil {
			return err
		}
		if got := route(t, "192.0.2.3", "ipproto tcp sport 40000 dport 6443"); got != "eth9" {
			t.Errorf("to the API server by %q", got)
		}
		if err := exec.Command("ip", "route", "get", "192.0.2.3").Run(); err == nil {
			t.Error("a node is reached without the tunnel")
		}
		r.Cleartext = true
		if _, err := (System{}).SetRoutes("missing", r); err != nil {
			return err
		}
		if got := route(t, "192.0.2.3", ""); got != "eth9" {
			t.Errorf("with cleartext, to a node by %q", got)
		}
		for _, changed := range []bool{true, false} {
			if n, err := (System{}).SetRoutes("missing", nil); err != nil || (n > 0) != changed {
				t.Errorf("leaving: %d changes, %v", n, err)
			}
		}
		for _, family := range hostnet.Families() {
			rules, err := netlink.RuleList(int(family))
			if max := map[hostnet.Family]int{hostnet.IPv4: 3, hostnet.IPv6: 2}[family]; err != nil || len(rules) > max {
				t.Errorf("%s: left %v, %v", family, rules, err)
			}
		}
		return nil
	})
}

// TestExemptionsPrecedeRule looks at the order of the changes, in which no packet of the API server's path enters the tunnel.
func TestExemptionsPrecedeRule(t *testing.T) {
	r := nodeRouting()
	want := r.Nodes.rules(hostnet.IPv4)
	on := additions(nil, want, nodeEndPriority, clearRulePriority)
	if len(on) != len(want)-1 || on[0].rule.Priority != nodeEndPriority {
		t.Errorf("%d additions before the rule, of %d", len(on), len(want))
	}
	off := removals(want, nil, nodeRulePriority, clearRulePriority, nodeEndPriority)
	if len(off) != len(want) || off[0].rule.Priority != nodeRulePriority || off[len(off)-1].rule.Priority != nodeEndPriority {
		t.Errorf("removed in the order %v", off)
	}
}

func TestClearPortIsParsed(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:8443": "192.0.2.1/32:8443", "192.0.2.9/24:53": "192.0.2.0/24:53", "[2001:db8::/64]:53": "[2001:db8::/64]:53", "[2001:db8::1]:53": "[2001:db8::1/128]:53",
		"192.0.2.1": "", "192.0.2.1:0": "", "192.0.2.1:65536": "", ":53": "", "[192.0.2.1]:53": "", "2001:db8::1:53": "", "[fe80::1%eth0]:53": "", "[::ffff:192.0.2.1]:53": "", "[2001:db8::1:53": "", "": "",
	} {
		var p ClearPort
		if err := p.UnmarshalText([]byte(text)); (err == nil) != (want != "") {
			t.Errorf("%q: %v, %v", text, p, err)
			continue
		}
		if got, _ := p.MarshalText(); want != "" && string(got) != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestNodeRoutingIsSaved(t *testing.T) {
	r := nodeRouting()
	text, err := json.Marshal(r)
	var back Routing
	if err = errors.Join(err, json.Unmarshal(text, &back)); err != nil {
		t.Fatal(err)
	}
	if again, _ := json.Marshal(back); string(again) != string(text) || len(back.Nodes.Clear) != 1 {
		t.Errorf("%s\n%s", text, again)
	}
}

func TestOldKernelsAreKnownByRelease(t *testing.T) {
	for release, old := range map[string]bool{
		"5.10.0-46-cloud-amd64": true, "5.15.0-190-generic": true, "6.0.19": true, "6.1.0-56-cloud-amd64": false, "6.12.118+deb13-cloud-amd64": false,
		"7.2": false, "10.0.1": false, "": false, "unknown": false,
	} {
		if got := OldKernel(release); (got == release && release != "") != old {
			t.Errorf("%q: got %q, old: %t", release, got, old)
		}
	}
}
