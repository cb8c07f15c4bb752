// SPDX-License-Identifier: Apache-2.0

// Package flow makes inner packets and trains for tests, numbered, and checks their order where they come out. It knows
// nothing of engines and devices.
//
// Not for other programs: it may change without notice.
package flow

import (
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Ends are the two ends of an inner flow, of one IP version.
type Ends struct {
	Src, Dst netip.AddrPort
}

// V6 tells whether the flow is one of IPv6.
func (e Ends) V6() bool { return e.Src.Addr().Is6() }

// UDP returns an IP packet with a UDP datagram, checksums complete.
func (e Ends) UDP(payload []byte) []byte {
	p, l4 := e.packet(packet.UDP, packet.UDPHeaderLen, payload)
	h := packet.UDPHeader(p[l4:])
	h.SetLen(len(h))
	h.SetChecksum(packet.UDPChecksum(packet.Sum(h, packet.PseudoSum(p, packet.UDP, len(h)))))
	return p
}

// TCP returns an IP packet with a TCP segment, checksums complete.
func (e Ends) TCP(seq uint32, payload []byte) []byte {
	p, l4 := e.tcp(seq, payload)
	h := packet.TCPHeader(p[l4:])
	h.SetChecksum(^packet.Fold(packet.Sum(h, packet.PseudoSum(p, packet.TCP, len(h)))))
	return p
}

// TCPTrain returns a train of TCP segments of size payload bytes each, the last perhaps shorter.
func (e Ends) TCPTrain(seq uint32, size int, payload []byte) []byte {
	p, l4 := e.tcp(seq, payload)
	h := packet.TCPHeader(p[l4:])
	h.SetChecksum(packet.Fold(packet.PseudoSum(p, packet.TCP, len(h))))
	v := offload.VnetHdr{
		Flags: offload.FlagNeedsCsum, GSOType: offload.GSOTCPv4, GSOSize: uint16(size),
		HdrLen: uint16(l4 + packet.TCPHeaderLen), CsumStart: uint16(l4), CsumOffset: packet.TCPChecksumOffset,
	}
	if e.V6() {
		v.GSOType = offload.GSOTCPv6
	}
	return train(v, p)
}

// UDPTrain returns a train of UDP datagrams of size payload bytes each, the last perhaps shorter.
func (e Ends) UDPTrain(size int, payload []byte) []byte {
	p, l4 := e.packet(packet.UDP, packet.UDPHeaderLen, payload)
	h := packet.UDPHeader(p[l4:])
	h.SetLen(len(h))
	h.SetChecksum(packet.Fold(packet.PseudoSum(p, packet.UDP, len(h))))
	return train(offload.VnetHdr{
		Flags: offload.FlagNeedsCsum, GSOType: offload.GSOUDPL4, GSOSize: uint16(size),
		HdrLen: uint16(l4 + packet.UDPHeaderLen), CsumStart: uint16(l4), CsumOffset: packet.UDPChecksumOffset,
	}, p)
}

// WithVnetHeader returns a packet as a TUN gives it: behind an empty virtio-net header.
func WithVnetHeader(p []byte) []byte { return train(offload.VnetHdr{}, p) }

func train(h offload.VnetHdr, p []byte) []byte {
	e := make([]byte, offload.VnetHdrLen, offload.VnetHdrLen+len(p))
	h.Encode(e)
	return append(e, p...)
}

// Packets returns the packets of a train written to a TUN.
func Packets(train []byte) ([][]byte, error) {
	if len(train) < offload.VnetHdrLen {
		return nil, fmt.Errorf("splitting a train of %d bytes: no virtio-net header", len(train))
	}
	var h offload.VnetHdr
	var t offload.Train
	h.Decode(train)
	if r := t.Parse(h, train[offload.VnetHdrLen:]); r != drop.None {
		return nil, fmt.Errorf("splitting a train of %d bytes: %v", len(train), r)
	}
	n, size := t.Segments(), t.SegmentLen()
	buf := make([]byte, n*size)
	t.Split(buf, size, 0, 0, n)
	packets := make([][]byte, n)
	for i := range packets {
		packets[i] = buf[i*size : (i+1)*size : (i+1)*size]
	}
	packets[n-1] = packets[n-1][:t.LastLen()]
	return packets, nil
}

// tcp returns a packet with a TCP header that lacks its checksum.
func (e Ends) tcp(seq uint32, payload []byte) (p []byte, l4 int) {
	p, l4 = e.packet(packet.TCP, packet.TCPHeaderLen, payload)
	h := packet.TCPHeader(p[l4:])
	h[12] = packet.TCPHeaderLen / 4 << 4
	h.SetSeq(seq)
	h.SetFlags(packet.ACK)
	return p, l4
}

// packet returns an IP packet with the ports set, an otherwise empty transport header, and payload. It is ECN-capable: on a slow machine
// the receive queue marks it where it would have to drop another.
func (e Ends) packet(proto packet.Protocol, header int, payload []byte) (p []byte, l4 int) {
	if e.V6() {
		p, l4 = e.ipv6(proto, header+len(payload)), packet.IPv6HeaderLen
	} else {
		p, l4 = e.ipv4(proto, header+len(payload)), packet.IPv4HeaderLen
	}
	p[l4], p[l4+1] = byte(e.Src.Port()>>8), byte(e.Src.Port())
	p[l4+2], p[l4+3] = byte(e.Dst.Port()>>8), byte(e.Dst.Port())
	copy(p[l4+header:], payload)
	return p, l4
}

func (e Ends) ipv4(proto packet.Protocol, n int) []byte {
	p := make([]byte, packet.IPv4HeaderLen+n)
	h := packet.IPv4(p[:packet.IPv4HeaderLen])
	h[0], h[1], h[8], h[9] = 0x45, byte(packet.ECT0), 64, byte(proto)
	h[6] = packet.IPv4DontFragment >> 8
	h.SetTotalLen(len(p))
	copy(h[12:16], e.Src.Addr().AsSlice())
	copy(h[16:20], e.Dst.Addr().AsSlice())
	h.SetChecksum(packet.Checksum(h))
	return p
}

func (e Ends) ipv6(proto packet.Protocol, n int) []byte {
	p := make([]byte, packet.IPv6HeaderLen+n)
	p[0], p[1], p[6], p[7] = 0x60, byte(packet.ECT0)<<4, byte(proto), 64
	packet.IPv6(p).SetPayloadLen(n)
	copy(p[8:24], e.Src.Addr().AsSlice())
	copy(p[24:40], e.Dst.Addr().AsSlice())
	return p
}
