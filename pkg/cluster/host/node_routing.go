// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// NodeRouting is the part of the traffic to addresses of other nodes that a tunnel carries. Rules
// that precede the rule for the tunnel's routes exempt the path between nodes and the API server,
// in both directions. A tunnel that does not work must not cut a node off from the API, which
// repairs it. They match addresses and ports only, so that they depend on no state of connections.
type NodeRouting struct {
	Routes []netip.Prefix `json:"routes"` // addresses of other nodes, as prefixes
	// Own are this node's addresses. It sends to Routes from the first one of the IP version.
	Own []netip.Addr `json:"own"`
	// API are the addresses and ports of the API server.
	API []netip.AddrPort `json:"api"`
	// Clear are other exemptions.
	Clear []ClearPort `json:"clear,omitempty"`
	// Ports are the tunnel's own UDP ports.
	Ports []PortRange `json:"ports"`
	// Sources are the only ones whose unencrypted packets to this node are dropped; none: all that the tunnel has routes to. Pods of a node
	// that does not take part reach this one in the clear.
	Sources []netip.Prefix `json:"sources,omitempty"`
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// ClearPort exempts a TCP and UDP port of the hosts in a prefix. It implements encoding.TextMarshaler and TextUnmarshaler:
// 192.0.2.1:8443, 192.0.2.0/24:53, [2001:db8::/64]:53.
type ClearPort struct {
	Prefix netip.Prefix
	Port   uint16
}

// MarshalText returns the form that UnmarshalText accepts.
func (c ClearPort) MarshalText() ([]byte, error) {
	if c.Prefix.Addr().Is6() {
		return fmt.Appendf(nil, "[%s]:%d", c.Prefix, c.Port), nil
	}
	return fmt.Appendf(nil, "%s:%d", c.Prefix, c.Port), nil
}

// UnmarshalText parses an exemption.
func (c *ClearPort) UnmarshalText(text []byte) error {
	at := strings.LastIndexByte(string(text), ':')
	if at < 0 {
		return fmt.Errorf("%q: want ADDRESS:PORT or CIDR:PORT", text)
	}
	host, bracketed := string(text[:at]), false
	if rest, ok := strings.CutPrefix(host, "["); ok {
		host, bracketed = strings.CutSuffix(rest, "]")
	}
	p, err := netip.ParsePrefix(host)
	if a, addrErr := netip.ParseAddr(host); addrErr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	port, portErr := strconv.ParseUint(string(text[at+1:]), 10, 16)
	if err != nil || portErr != nil || port == 0 || p.Addr().Is4In6() || p.Addr().Is6() != bracketed {
		return fmt.Errorf("%q: want ADDRESS:PORT or CIDR:PORT, such as 192.0.2.1:8443 or [2001:db8::/64]:53", text)
	}
	*c = ClearPort{p.Masked(), uint16(port)}
	return nil
}

// Ports of the control plane that are exempt, besides the API server's: its path to the kubelets,
// and etcd. All use TLS. Members of etcd that do not reach each other would end the API.
const (
	kubeletPort                 = 10250
	firstEtcdPort, lastEtcdPort = 2379, 2380 // of clients, and between members
	bgpPort                     = 179
	protocolVRRP                = 112 // RFC 9568: virtual addresses, such as the API server's, move between nodes
)

// clearFlow describes packets between nodes that bypass the tunnel. Zero values match all packets.
type clearFlow struct {
	src, dst     netip.Prefix
	protocol     int
	sport, dport PortRange
}

// clearFlows returns the exemptions that all nodes have in common, each with its opposite direction.
func (n *NodeRouting) clearFlows() (all []clearFlow) {
	both := func(protocol int, prefix netip.Prefix, ports PortRange) {
		all = append(all, clearFlow{dst: prefix, protocol: protocol, dport: ports}, clearFlow{src: prefix, protocol: protocol, sport: ports})
	}
	var done []netip.Prefix
	for _, at := range n.API {
		p := netip.PrefixFrom(at.Addr(), at.Addr().BitLen())
		both(unix.IPPROTO_TCP, p, PortRange{at.Port(), at.Port()})
		if slices.Contains(done, p) {
			continue
		}
		done = append(done, p)
		both(unix.IPPROTO_TCP, p, PortRange{firstEtcdPort, lastEtcdPort})
		for _, port := range []uint16{kubeletPort, lastEtcdPort} { // also of a member of etcd that joins, and whose node is not in API yet
			r := PortRange{port, port}
			all = append(all, clearFlow{src: p, protocol: unix.IPPROTO_TCP, dport: r}, clearFlow{dst: p, protocol: unix.IPPROTO_TCP, sport: r})
		}
	}
	for _, c := range n.Clear {
		both(unix.IPPROTO_TCP, c.Prefix, PortRange{c.Port, c.Port})
		both(unix.IPPROTO_UDP, c.Prefix, PortRange{c.Port, c.Port})
	}
	both(unix.IPPROTO_TCP, netip.Prefix{}, PortRange{bgpPort, bgpPort})
	return append(all, clearFlow{protocol: protocolVRRP})
}

// concerns reports whether the flow may be of an IP version.
func (f *clearFlow) concerns(family hostnet.Family) bool {
	return !slices.ContainsFunc([]netip.Prefix{f.src, f.dst}, func(p netip.Prefix) bool { return p.IsValid() && hostnet.FamilyOf(p.Addr()) != family })
}

// routes reports whether there are routes of an IP version.
func (n *NodeRouting) routes(family hostnet.Family) bool {
	return n != nil && slices.ContainsFunc(n.Routes, func(p netip.Prefix) bool { return hostnet.FamilyOf(p.Addr()) == family })
}

// owns reports whether a prefix contains an address of this node.
func (n *NodeRouting) owns(p netip.Prefix) bool {
	return slices.ContainsFunc(n.Own, p.Contains)
}

// nodeRouting returns the routes to other nodes as a Routing of their own; nil: there are none.
func (r *Routing) nodeRouting() *Routing {
	if r == nil || r.Nodes == nil {
		return nil
	}
	return &Routing{Routes: r.Nodes.Routes, MTU: r.MTU, Sources: r.Nodes.Own, Cleartext: r.Cleartext}
}
