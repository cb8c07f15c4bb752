// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// mac is an Ethernet address.
type mac [6]byte

// egress is how packets to a destination leave by the device. It is comparable.
type egress struct {
	device   string // the name of the device that has the source, a VLAN's for one
	from, to mac
	tagged   bool
	vlan     uint16 // with tagged, the VLAN's number
	src, dst netip.Addr
	mtu      int   // bytes of IP packet
	hops     uint8 // TTL or hop limit
}

// frameHeader is the headers of packets that take one way: with DSCP 0, and like those of the in-kernel WireGuard otherwise
// (DF off, flow label 0). What differs from packet to packet is zero.
type frameHeader struct {
	bytes  [maxHeader]byte
	ip     int    // where the IP header begins
	udp    int    // where the UDP header begins
	v6     bool   // which IP
	max    int    // the largest payload
	sum    uint64 // of the IPv4 header
	pseudo uint64 // the partial sum of the pseudo header (RFC 768; RFC 8200, section 8.1), the length missing
}

// len is the length of all headers.
func (t *frameHeader) len() int { return t.udp + packet.UDPHeaderLen }

// newFrameHeader returns the headers for a way whose addresses are of one family.
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

// stamp is a template with what all datagrams of a run share, but for their length, which the last may have its own of.
type stamp struct {
	frameHeader
	id    uint16
	step  uint16 // from one packet's identification to the next
	sized int    // the payload length that the headers say
}

// begin makes s a stamp for a run.
func (s *stamp) begin(t *frameHeader, from, to uint16, ecn packet.ECN) {
	s.frameHeader = *t
	s.sized = -1
	binary.BigEndian.PutUint16(s.bytes[t.udp:], from)
	binary.BigEndian.PutUint16(s.bytes[t.udp+2:], to)
	if t.v6 {
		s.bytes[t.ip+1] = byte(ecn) << 4
		return
	}
	s.bytes[t.ip+1] = byte(ecn)
	s.sum += uint64(ecn)
}

// size makes the headers say how long the payload is.
func (s *stamp) size(payload int) {
	if s.sized == payload {
		return
	}
	n := packet.UDPHeaderLen + payload
	binary.BigEndian.PutUint16(s.bytes[s.udp+4:], uint16(n))
	if s.v6 {
		packet.IPv6(s.bytes[s.ip:]).SetPayloadLen(n)
	} else {
		packet.IPv4(s.bytes[s.ip:]).SetTotalLen(packet.IPv4HeaderLen + n)
	}
	s.sized = payload
}

// put writes the headers and a copy of the payload into a frame, and returns the frame's length. The UDP checksum is left
// as that of the pseudo header, not inverted, for a device that completes it; else finish it with complete.
func (s *stamp) put(frame, payload []byte) int {
	s.size(len(payload))
	header := s.len()
	frame = frame[:max(header+len(payload), minFrame)]
	copy(frame, s.bytes[:header])
	n := header + copy(frame[header:], payload)
	clear(frame[n:])
	if !s.v6 {
		ip := packet.IPv4(frame[s.ip:])
		ip.SetID(s.id)
		ip.SetChecksum(^packet.Fold(s.sum + uint64(s.id) + uint64(s.udpLen()+packet.IPv4HeaderLen)))
		s.id += s.step
	}
	packet.UDPHeader(frame[s.udp:]).SetChecksum(packet.Fold(s.pseudo + uint64(s.udpLen())))
	return len(frame)
}

func (s *stamp) udpLen() int { return packet.UDPHeaderLen + s.sized }

// complete finishes the UDP checksum of a frame that put wrote. IPv4 could do without one (RFC 768), but then Linux does
// not coalesce what arrives (udp_gro_receive_segment asks for a checksum), nor do some middleboxes forward it, either of
// which costs more than the sum.
func (s *stamp) complete(frame []byte) {
	udp := frame[s.udp:][:s.udpLen()]
	packet.UDPHeader(udp).SetChecksum(packet.UDPChecksum(packet.Sum(udp, 0)))
}
