// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// mac is an Ethernet address.
type mac [6]byte

// egress holds the fields of the headers of packets to a destination. It is comparable.
type egress struct {
	device   string // name of the device that has the source address; the VLAN's if tagged
	from, to mac
	tagged   bool
	vlan     uint16 // VLAN ID, if tagged
	src, dst netip.Addr
	mtu      int   // of the IP packet, in bytes
	hops     uint8 // TTL or hop limit
}

// frameHeader holds the headers of packets on one path. DSCP and flow label are 0, as in-kernel WireGuard sends them. Fields that differ between packets are zero.
type frameHeader struct {
	bytes  [maxHeader]byte
	ip     int    // offset of the IP header
	udp    int    // offset of the UDP header
	v6     bool   // IPv6
	max    int    // maximum payload in bytes
	sum    uint64 // partial sum of the IPv4 header
	pseudo uint64 // the partial sum of the pseudo header (RFC 768; RFC 8200, section 8.1), the length missing
}

// len returns the length of all headers.
func (h *frameHeader) len() int { return h.udp + packet.UDPHeaderLen }

// newFrameHeader returns the headers for an egress whose addresses are of one family.
func newFrameHeader(e *egress) (h frameHeader) {
	b := h.bytes[:]
	copy(b, e.to[:])
	copy(b[6:], e.from[:])
	h.ip = ethernetLen
	h.v6 = e.dst.Is6()
	if e.tagged {
		binary.BigEndian.PutUint16(b[12:], uint16(etherTypeVLAN))
		binary.BigEndian.PutUint16(b[14:], e.vlan)
		h.ip += vlanLen
	}
	if h.v6 {
		h.putIPv6(e)
	} else {
		h.putIPv4(e)
	}
	h.max = e.mtu - (h.len() - h.ip)
	return h
}

func (h *frameHeader) putIPv4(e *egress) {
	binary.BigEndian.PutUint16(h.bytes[h.ip-2:], uint16(packet.EtherTypeIPv4))
	h.udp = h.ip + packet.IPv4HeaderLen
	ip := h.bytes[h.ip:h.udp]
	ip[0], ip[8], ip[9] = 0x45, e.hops, byte(packet.UDP)
	src, dst := e.src.As4(), e.dst.As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	h.sum, h.pseudo = packet.Sum(ip, 0), packet.PseudoSum(ip, packet.UDP, 0)
}

func (h *frameHeader) putIPv6(e *egress) {
	binary.BigEndian.PutUint16(h.bytes[h.ip-2:], uint16(packet.EtherTypeIPv6))
	h.udp = h.ip + packet.IPv6HeaderLen
	ip := h.bytes[h.ip:h.udp]
	ip[0], ip[6], ip[7] = 0x60, byte(packet.UDP), e.hops
	src, dst := e.src.As16(), e.dst.As16()
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	h.pseudo = packet.PseudoSum(ip, packet.UDP, 0)
}

// runHeader is a frameHeader with the fields that all datagrams of a run share. The payload length is set per datagram,
// because the last one may be shorter.
type runHeader struct {
	frameHeader
	id         uint16
	idStep     uint16 // increment of the IPv4 identification per packet
	payloadLen int    // payload length in the headers; -1 if unset
}

// begin initializes s for a run.
func (s *runHeader) begin(h *frameHeader, from, to uint16, ecn packet.ECN, dontFragment bool) {
	s.frameHeader = *h
	s.payloadLen = -1
	binary.BigEndian.PutUint16(s.bytes[h.udp:], from)
	binary.BigEndian.PutUint16(s.bytes[h.udp+2:], to)
	if h.v6 {
		s.bytes[h.ip+1] = byte(ecn) << 4
		return
	}
	s.bytes[h.ip+1] = byte(ecn)
	s.sum += uint64(ecn)
	if dontFragment {
		s.bytes[h.ip+6] = packet.IPv4DontFragment >> 8
		s.sum += packet.IPv4DontFragment
	}
}

// setPayloadLen writes the payload length into the headers.
func (s *runHeader) setPayloadLen(payload int) {
	if s.payloadLen == payload {
		return
	}
	n := packet.UDPHeaderLen + payload
	binary.BigEndian.PutUint16(s.bytes[s.udp+4:], uint16(n))
	if s.v6 {
		packet.IPv6(s.bytes[s.ip:]).SetPayloadLen(n)
	} else {
		packet.IPv4(s.bytes[s.ip:]).SetTotalLen(packet.IPv4HeaderLen + n)
	}
	s.payloadLen = payload
}

// writeFrame writes the headers and a copy of the payload into a frame, and returns the frame's length. The UDP
// checksum field gets the pseudo header's sum, not inverted, for a device that completes it. Otherwise call complete.
func (s *runHeader) writeFrame(frame, payload []byte) int {
	s.setPayloadLen(len(payload))
	header := s.len()
	frame = frame[:max(header+len(payload), minFrame)]
	copy(frame, s.bytes[:header])
	n := header + copy(frame[header:], payload)
	clear(frame[n:])
	if !s.v6 {
		ip := packet.IPv4(frame[s.ip:])
		ip.SetID(s.id)
		ip.SetChecksum(^packet.Fold(s.sum + uint64(s.id) + uint64(s.udpLen()+packet.IPv4HeaderLen)))
		s.id += s.idStep
	}
	packet.UDPHeader(frame[s.udp:]).SetChecksum(packet.Fold(s.pseudo + uint64(s.udpLen())))
	return len(frame)
}

func (s *runHeader) udpLen() int { return packet.UDPHeaderLen + s.payloadLen }

// complete computes the UDP checksum of a frame that writeFrame wrote. IPv4 permits no checksum (RFC 768). But then
// Linux does not coalesce received datagrams (udp_gro_receive_segment requires a checksum), and some middleboxes do not
// forward them. Either costs more than the checksum.
func (s *runHeader) complete(frame []byte) {
	udp := frame[s.udp:][:s.udpLen()]
	packet.UDPHeader(udp).SetChecksum(packet.UDPChecksum(packet.Sum(udp, 0)))
}
