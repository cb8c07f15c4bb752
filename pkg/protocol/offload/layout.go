// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// kind is the way in which a packet may be merged.
type kind uint8

const (
	opaque kind = iota // never: not TCP or UDP, a fragment, with IPv4 options or IPv6 extension headers, or malformed
	tcp4
	tcp6
	udp4
	udp6
)

func (k kind) udp() bool { return k >= udp4 }
func (k kind) v6() bool  { return k == tcp6 || k == udp6 }

// layout is the location of a packet's headers. For an opaque packet they are unknown.
type layout struct {
	kind   kind
	l4     uint8 // the offset of the transport header
	hdrLen uint8 // bytes of IP and transport header
}

// layoutOf finds the headers of p. If the kind is not opaque, p is complete and its lengths are correct.
func layoutOf(p []byte) layout {
	switch {
	case len(p) >= packet.IPv4HeaderLen+packet.UDPHeaderLen && p[0] == 0x45:
		ip := packet.IPv4(p)
		if ip.TotalLen() == len(p) && !ip.IsFragment() {
			return transportLayout(p, ip.Protocol(), packet.IPv4HeaderLen, tcp4, udp4)
		}
	case len(p) >= packet.IPv6HeaderLen+packet.UDPHeaderLen && p[0]>>4 == 6:
		ip := packet.IPv6(p)
		if packet.IPv6HeaderLen+ip.PayloadLen() == len(p) {
			return transportLayout(p, ip.NextHeader(), packet.IPv6HeaderLen, tcp6, udp6)
		}
	}
	return layout{}
}

func transportLayout(p []byte, proto packet.Protocol, l4 int, tcp, udp kind) layout {
	switch proto {
	case packet.UDP:
		if packet.UDPHeader(p[l4:]).Len() == len(p)-l4 {
			return layout{udp, uint8(l4), uint8(l4 + packet.UDPHeaderLen)}
		}
	case packet.TCP:
		if len(p) < l4+packet.TCPHeaderLen {
			break
		}
		size := packet.TCPHeader(p[l4:]).HeaderLen()
		if size >= packet.TCPHeaderLen && size <= len(p)-l4 {
			return layout{tcp, uint8(l4), uint8(l4 + size)}
		}
	}
	return layout{}
}

// checksumsOK verifies the checksums of a packet that is not opaque. A UDP datagram without one passes.
func (l layout) checksumsOK(p []byte) bool {
	proto := packet.TCP
	if l.kind.udp() {
		proto = packet.UDP
	}
	if !l.kind.v6() && !packet.IPv4(p).ChecksumOK() {
		return false
	}
	l4 := p[l.l4:]
	if l.kind == udp4 && packet.UDPHeader(l4).Checksum() == 0 {
		return true
	}
	return packet.Fold(packet.Sum(l4, packet.PseudoSum(p, proto, len(l4)))) == 0xffff
}

// canContinue reports whether packets may be merged behind this one: it has payload, and does not end its train.
func (l layout) canContinue(p []byte) bool {
	if len(p) == int(l.hdrLen) {
		return false
	}
	switch l.kind {
	case tcp4, tcp6:
		const final = packet.URG | packet.PSH | packet.RST | packet.SYN | packet.FIN
		return packet.TCPHeader(p[l.l4:]).Flags()&final == 0
	case udp6:
		return packet.UDPHeader(p[l.l4:]).Checksum() != 0
	}
	return l.kind == udp4
}

// sameFlow reports whether two packets of the same kind have the same addresses and ports.
func (l layout) sameFlow(a, b []byte) bool {
	if load32(a[l.l4:]) != load32(b[l.l4:]) {
		return false
	}
	return samePair(a, b, l.kind.v6())
}

// samePair reports whether two packets of the same IP version, with complete headers, have the same addresses.
func samePair(a, b []byte, v6 bool) bool {
	if !v6 {
		return load64(a[12:]) == load64(b[12:])
	}
	a, b = a[8:40], b[8:40]
	return (load64(a)^load64(b))|(load64(a[8:])^load64(b[8:]))|
		(load64(a[16:])^load64(b[16:]))|(load64(a[24:])^load64(b[24:])) == 0
}

// tag returns bits that packets of one flow share, for the flow table.
func (l layout) tag(p []byte) uint32 {
	const odd = 0x9e3779b97f4a7c15
	x := uint64(load32(p[l.l4:])) + uint64(l.kind)<<32
	if l.kind.v6() {
		x = x*odd ^ load64(p[8:]) ^ load64(p[24:])
		x = x*odd ^ load64(p[16:]) + load64(p[32:])*3
	} else {
		x = x*odd ^ load64(p[12:])
	}
	return uint32(x * odd >> 32)
}

// Values are only compared, so the byte order does not matter.
func load16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func load32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func load64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
