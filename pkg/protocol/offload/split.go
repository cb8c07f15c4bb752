// SPDX-License-Identifier: Apache-2.0

package offload

import "github.com/ropewalk/ropewalk/pkg/protocol/packet"

// Split writes the inner packets first to first+count-1, complete and valid, into dst. Packet k of
// them starts at dst[k*stride+headroom]. stride must be at least SegmentLen. dst must reach to the
// end of the last one and must not overlap the parsed packet. Bytes between packets stay
// unchanged.
//
// The fields are as in the kernel (inet_gso_segment, tcp_gso_segment, __udp_gso_segment). The IPv4
// ID increments per packet, FIN and PSH stay on the last packet and CWR on the first. IPv4 options
// and IPv6 extension headers are on all. Datagrams of a USO train have complete checksums, unless
// the train had checksum 0 and the kernel did not request one.
func (t *Train) Split(dst []byte, stride, headroom, first, count int) {
	if t.segSize == 0 {
		if count > 0 {
			t.Finish(dst[headroom : headroom+copy(dst[headroom:headroom+len(t.pkt)], t.pkt)])
		}
		return
	}
	for i := first; i < first+count; i++ {
		payload := t.payload(i)
		at := (i-first)*stride + headroom
		seg := dst[at : at+t.hdrLen+len(payload)]
		copy(seg, t.pkt[:t.hdrLen])
		copy(seg[t.hdrLen:], payload)
		t.setIP(seg, i)
		if t.udp {
			t.setUDP(seg[t.l4:], payload)
		} else {
			t.setTCP(seg[t.l4:], payload, i)
		}
	}
}

// Finish completes the checksum of a single packet (Segments is 1) in place if the kernel left it partial, and
// changes nothing else. pkt is the parsed packet or a copy of it. Finish does nothing for trains.
func (t *Train) Finish(pkt []byte) {
	if t.csumAt == 0 {
		return
	}
	// As skb_checksum_help does for every protocol: 0 becomes 0xffff, which is equal in ones' complement.
	sum := packet.UDPChecksum(packet.Sum(pkt[t.l4:len(t.pkt)], 0))
	pkt[t.csumAt], pkt[t.csumAt+1] = byte(sum>>8), byte(sum)
}

// payload returns the payload of segment i.
func (t *Train) payload(i int) []byte {
	start := t.hdrLen + i*t.segSize
	return t.pkt[start:min(start+t.segSize, len(t.pkt))]
}

// setIP sets the IP header fields of segment i.
func (t *Train) setIP(seg []byte, i int) {
	if packet.VersionOf(seg) == packet.Version6 {
		packet.IPv6(seg).SetPayloadLen(len(seg) - packet.IPv6HeaderLen)
		return
	}
	h := packet.IPv4(seg)
	id := h.ID() + uint16(i)
	h.SetTotalLen(len(seg))
	h.SetID(id)
	h.SetChecksum(^packet.Fold(t.ipSum + uint64(len(seg)) + uint64(id)))
}

// setTCP sets the TCP header fields of segment i.
func (t *Train) setTCP(l4, payload []byte, i int) {
	h := packet.TCPHeader(l4)
	seq, flags := h.Seq()+uint32(i*t.segSize), h.Flags()
	if i > 0 {
		flags &^= packet.CWR
	}
	if i < t.segments-1 {
		flags &^= packet.FIN | packet.PSH
	}
	h.SetSeq(seq)
	h.SetFlags(flags)
	h.SetChecksum(^packet.Fold(packet.Sum(payload, t.l4Sum+uint64(len(l4))+uint64(seq)+uint64(flags))))
}

// setUDP sets the UDP header fields of a segment. The length is in the header and in the pseudo-header.
func (t *Train) setUDP(l4, payload []byte) {
	h := packet.UDPHeader(l4)
	h.SetLen(len(l4))
	if !t.keepZero {
		h.SetChecksum(packet.UDPChecksum(packet.Sum(payload, t.l4Sum+2*uint64(len(l4)))))
	}
}
