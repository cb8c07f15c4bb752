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

// frameHeader holds the headers of packets on one path. DSCP is 0; the rest is as in-kernel WireGuard sends it (DF off,
// flow label 0). Fields that differ between packets are zero.
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
func (t *frameHeader) len() int { return t.udp + packet.UDPHeaderLen }

// newFrameHeader returns the headers for an egress whose addresses are of one family.
func newFrameHeader(w *egress) (t frameHeader) {
	b := t.bytes[:]
	copy(b, w.to[:])
	copy(b[6:], w.from[:])
	t.ip = ethernetLen
	t.v6 = w.dst.Is6()
	if w.tagged {
		binary.BigEndian.PutUint16(b[12:], uint16(etherTypeVLAN))
		binary.BigEndian.PutUint16(b[14:], w.vlan)
		t.ip += vlanLen
	}
	if t.v6 {
		t.putIPv6(w)
	} else {
		t.putIPv4(w)
	}
	t.max = w.mtu - (t.len() - t.ip)
	return t
}

func (t *frameHeader) putIPv4(w *egress) {
	binary.BigEndian.PutUint16(t.bytes[t.ip-2:], uint16(packet.EtherTypeIPv4))
	t.udp = t.ip + packet.IPv4HeaderLen
	ip := t.bytes[t.ip:t.udp]
	ip[0], ip[8], ip[9] = 0x45, w.hops, byte(packet.UDP)
	src, dst := w.src.As4(), w.dst.As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	t.sum, t.pseudo = packet.Sum(ip, 0), packet.PseudoSum(ip, packet.UDP, 0)
}

func (t *frameHeader) putIPv6(w *egress) {
	binary.BigEndian.PutUint16(t.bytes[t.ip-2:], uint16(packet.EtherTypeIPv6))
	t.udp = t.ip + packet.IPv6HeaderLen
	ip := t.bytes[t.ip:t.udp]
	ip[0], ip[6], ip[7] = 0x60, byte(packet.UDP), w.hops
	src, dst := w.src.As16(), w.dst.As16()
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	t.pseudo = packet.PseudoSum(ip, packet.UDP, 0)
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
func (s *runHeader) begin(t *frameHeader, from, to uint16, ecn packet.ECN) {
	s.frameHeader = *t
	s.payloadLen = -1
	binary.BigEndian.PutUint16(s.bytes[t.udp:], from)
	binary.BigEndian.PutUint16(s.bytes[t.udp+2:], to)
	if t.v6 {
		s.bytes[t.ip+1] = byte(ecn) << 4
		return
	}
	s.bytes[t.ip+1] = byte(ecn)
	s.sum += uint64(ecn)
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
