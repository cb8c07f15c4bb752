// SPDX-License-Identifier: Apache-2.0

package toobig

import (
	"encoding/binary"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Message is an ICMP error about a UDP packet that was too big for a link.
type Message struct {
	MTU     int            // of the link, in bytes of IP packets; 0 if the router does not say it (before RFC 1191)
	Size    int            // of the quoted IP packet, in bytes
	From    netip.AddrPort // the quoted source
	To      netip.AddrPort // the quoted destination
	Payload []byte         // the quoted start of the UDP payload; it may be empty
	By      netip.Addr     // the sender of the message, without a zone
	Link    int            // the interface index at which the message arrived, 0 if unknown
}

// The types of the messages, and the code of the first.
const (
	typeUnreachable4       = 3
	codeFragmentationNeed4 = 4
	typeTooBig6            = 2
)

// icmpHeaderLen is the length in bytes of an ICMP header, behind which the quoted packet begins.
const icmpHeaderLen = 8

// parse4 reads an ICMP message. It reports false unless that is about a UDP packet that is too big. m.Payload is a part of b.
func parse4(b []byte, m *Message) bool {
	if len(b) < icmpHeaderLen+packet.IPv4HeaderLen || b[0] != typeUnreachable4 || b[1] != codeFragmentationNeed4 {
		return false
	}
	ip := b[icmpHeaderLen:]
	header := packet.IPv4(ip).HeaderLen()
	if ip[0]>>4 != 4 || ip[9] != byte(packet.UDP) || header < packet.IPv4HeaderLen || len(ip) < header+packet.UDPHeaderLen {
		return false
	}
	if binary.BigEndian.Uint16(ip[6:])&0x1fff != 0 {
		return false // not the first fragment
	}
	m.MTU, m.Size = int(binary.BigEndian.Uint16(b[6:])), int(binary.BigEndian.Uint16(ip[2:]))
	m.setUDP(netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[header:])
	return true
}

// parse6 reads an ICMPv6 message, like parse4. Packets of this program have no extension headers.
func parse6(b []byte, m *Message) bool {
	if len(b) < icmpHeaderLen+packet.IPv6HeaderLen+packet.UDPHeaderLen || b[0] != typeTooBig6 {
		return false
	}
	ip := b[icmpHeaderLen:]
	if ip[0]>>4 != 6 || ip[6] != byte(packet.UDP) {
		return false
	}
	mtu := binary.BigEndian.Uint32(b[4:])
	m.MTU, m.Size = int(min(mtu, 1<<20)), packet.IPv6HeaderLen+int(binary.BigEndian.Uint16(ip[4:]))
	m.setUDP(netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[packet.IPv6HeaderLen:])
	return true
}

// setUDP sets what depends on the UDP packet.
func (m *Message) setUDP(src, dst netip.Addr, udp []byte) {
	m.From = netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp))
	m.To = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(udp[2:]))
	m.Payload = udp[packet.UDPHeaderLen:]
}
