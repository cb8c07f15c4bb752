// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"strconv"
)

// Flow is the inner flow of a packet in one direction. Ports are 0 where FlowHash covers none.
type Flow struct {
	Source, Destination netip.AddrPort
	Protocol            Protocol
}

// FlowOf returns the flow of an IP packet for which Length is ok.
func FlowOf(ip []byte) Flow {
	proto, src, dst := flowPorts(ip)
	return Flow{Source: netip.AddrPortFrom(Source(ip), src), Destination: netip.AddrPortFrom(Destination(ip), dst), Protocol: proto}
}

// Matches reports whether packets of both may belong to one flow. A packet without ports may be a
// fragment of any flow between its two hosts.
func (f Flow) Matches(g Flow) bool {
	if f == g {
		return true
	}
	return f.Source.Addr() == g.Source.Addr() && f.Destination.Addr() == g.Destination.Addr() && (f.withoutPorts() || g.withoutPorts())
}

func (f Flow) withoutPorts() bool { return f.Source.Port()|f.Destination.Port() == 0 }

// String returns the protocol's name: tcp, udp, icmp, ipv6-icmp, sctp, or its number.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMP:
		return "icmp"
	case ICMPv6:
		return "ipv6-icmp"
	case SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}
