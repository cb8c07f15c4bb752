// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Train is one packet read from a TUN device: a single packet, or a TSO or USO super-packet. The zero value is ready
// for Parse, and may be reused. A Train refers to the parsed packet and never changes it, except in Finish. After
// Parse any number of goroutines may call the other methods; only Parse writes the Train.
type Train struct {
	pkt      []byte // the IP packet, cut to its IP length
	segments int
	segSize  int // payload bytes of each segment but the last; 0 if there is only one
	hdrLen   int // bytes of IP and transport header
	l4       int // the offset of the transport header, or of the bytes to be summed
	csumAt   int // the offset at which Finish stores the checksum; 0 for none
	udp      bool
	keepZero bool // a USO train whose sender computed no checksums

	// Sums over the headers, less the fields that differ between segments.
	ipSum uint64
	l4Sum uint64
}

// Len returns the length in bytes of the parsed packet.
func (t *Train) Len() int { return len(t.pkt) }

// ECN returns the ECN field of the parsed packet.
func (t *Train) ECN() packet.ECN { return packet.ECNOf(t.pkt) }

// FlowHash returns packet.FlowHash of the parsed packet.
func (t *Train) FlowHash() uint32 { return packet.FlowHash(t.pkt) }

// Flow returns packet.FlowOf of the parsed packet.
func (t *Train) Flow() packet.Flow { return packet.FlowOf(t.pkt) }

// Parse parses a packet read from the TUN device: the decoded virtio-net header and the packet
// behind it. The Train refers to the packet from then on. It trusts nothing: lengths, offsets and
// header sizes are taken from the packet, and those in h must match them. If Parse returns a
// reason other than drop.None, the Train must not be used. drop.TXMalformed means that pkt is no
// IP packet or has an invalid length; drop.TXVnetHeader means that h does not match the packet.
func (t *Train) Parse(h VnetHdr, pkt []byte) drop.Reason {
	n, ok := packet.Length(pkt)
	if !ok {
		return drop.TXMalformed
	}
	*t = Train{pkt: pkt[:n], segments: 1}
	if h.GSOType == GSONone {
		return t.parseSingle(h)
	}
	// The kernel segments the whole buffer; a different IP length (BIG TCP has 0) is invalid.
	if n != len(pkt) {
		return drop.TXMalformed
	}
	return t.parseGSO(h)
}

// parseSingle checks the location of a partial checksum that must be completed. Any transport protocol may have one.
func (t *Train) parseSingle(h VnetHdr) drop.Reason {
	if h.Flags&FlagNeedsCsum == 0 {
		return drop.None
	}
	header := packet.IPv6HeaderLen
	if packet.VersionOf(t.pkt) == packet.Version4 {
		header = packet.IPv4(t.pkt).HeaderLen()
	}
	start, at := int(h.CsumStart), int(h.CsumStart)+int(h.CsumOffset)
	if start < header || at+2 > len(t.pkt) {
		return drop.TXVnetHeader
	}
	t.l4, t.csumAt = start, at
	return drop.None
}

// parseGSO finds the headers of a train and sums the header fields that its segments share.
func (t *Train) parseGSO(h VnetHdr) drop.Reason {
	tr, ok := packet.FindTransport(t.pkt)
	if !ok {
		return drop.TXMalformed
	}
	if tr.Fragment || !h.matches(packet.VersionOf(t.pkt), tr) {
		return drop.TXVnetHeader
	}
	// With a routing header among the extension headers, the IP destination is not the pseudo-header's. Only a partial sum
	// includes the right one.
	if h.Flags&FlagNeedsCsum == 0 && packet.VersionOf(t.pkt) == packet.Version6 && tr.Offset != packet.IPv6HeaderLen {
		return drop.TXVnetHeader
	}
	t.l4, t.udp, t.segSize = tr.Offset, tr.Protocol == packet.UDP, int(h.GSOSize)
	if reason := t.parseTransport(); reason != drop.None {
		return reason
	}
	payload := len(t.pkt) - t.hdrLen
	if payload <= t.segSize {
		// "Too small packets are not really GSO ones" (virtio_net_hdr_to_skb).
		t.segSize = 0
		return t.parseSingle(h)
	}
	t.segments = (payload + t.segSize - 1) / t.segSize
	t.sumHeaders(h.Flags&FlagNeedsCsum != 0)
	return drop.None
}

// matches reports whether a GSO header is consistent with its packet.
func (h *VnetHdr) matches(v packet.Version, tr packet.Transport) bool {
	var proto packet.Protocol
	csumOffset := uint16(packet.TCPChecksumOffset)
	switch h.GSOType {
	case GSOTCPv4, GSOTCPv4 | GSOECN:
		if v != packet.Version4 {
			return false
		}
		proto = packet.TCP
	case GSOTCPv6, GSOTCPv6 | GSOECN:
		if v != packet.Version6 {
			return false
		}
		proto = packet.TCP
	case GSOUDPL4:
		proto, csumOffset = packet.UDP, packet.UDPChecksumOffset
	default:
		return false
	}
	if h.GSOSize == 0 || tr.Protocol != proto {
		return false
	}
	return h.Flags&FlagNeedsCsum == 0 || int(h.CsumStart) == tr.Offset && h.CsumOffset == csumOffset
}

// parseTransport finds the start of the payload.
func (t *Train) parseTransport() drop.Reason {
	l4 := t.pkt[t.l4:]
	if t.udp {
		if len(l4) < packet.UDPHeaderLen || packet.UDPHeader(l4).Len() != len(l4) {
			return drop.TXMalformed
		}
		t.hdrLen = t.l4 + packet.UDPHeaderLen
		return drop.None
	}
	if len(l4) < packet.TCPHeaderLen {
		return drop.TXMalformed
	}
	size := packet.TCPHeader(l4).HeaderLen()
	if size < packet.TCPHeaderLen || size > len(l4) {
		return drop.TXMalformed
	}
	t.hdrLen = t.l4 + size
	return drop.None
}

// sumHeaders sums the header fields that all segments share.
func (t *Train) sumHeaders(partial bool) {
	if packet.VersionOf(t.pkt) == packet.Version4 {
		ip := packet.IPv4(t.pkt[:t.l4])
		t.ipSum = packet.Sum(ip, negate16(uint16(ip.TotalLen()))+negate16(ip.ID())+negate16(ip.Checksum()))
	}
	header := t.pkt[t.l4:t.hdrLen]
	if t.udp {
		h := packet.UDPHeader(header)
		t.keepZero = !partial && h.Checksum() == 0 && packet.VersionOf(t.pkt) == packet.Version4
		t.l4Sum = t.pseudoSum(partial, packet.UDP, h.Checksum()) + packet.Sum(header[:4], 0)
		return
	}
	h := packet.TCPHeader(header)
	t.l4Sum = t.pseudoSum(partial, packet.TCP, h.Checksum()) +
		packet.Sum(header, negate16(h.Checksum())+negate32(h.Seq())+negate16(uint16(h.Flags())))
}

// pseudoSum returns the sum of the pseudo-header without a length. A partial checksum contains the sum with the whole
// train's length, and is trusted as the kernel trusts it. Otherwise the sum is computed from the IP header.
func (t *Train) pseudoSum(partial bool, proto packet.Protocol, check uint16) uint64 {
	if partial {
		return uint64(check) + negate16(uint16(len(t.pkt)-t.l4))
	}
	return packet.PseudoSum(t.pkt, proto, 0)
}

// negate16 and negate32 return the term that subtracts v from a ones' complement sum.
func negate16(v uint16) uint64 { return uint64(^v) }
func negate32(v uint32) uint64 { return uint64(^v) }

// Segments is the number of inner packets in the train; 1 for a single packet.
func (t *Train) Segments() int { return t.segments }

// SegmentLen is the length in bytes of each inner packet but the last, or the length of a single packet.
func (t *Train) SegmentLen() int {
	if t.segments == 1 {
		return len(t.pkt)
	}
	return t.hdrLen + t.segSize
}

// LastLen is the length in bytes of the last inner packet.
func (t *Train) LastLen() int { return len(t.pkt) - (t.segments-1)*t.segSize }

// Version is the IP version of all packets of the train.
func (t *Train) Version() packet.Version { return packet.VersionOf(t.pkt) }

// Fragmentable reports whether routers may fragment the packets of the train: IPv4 without DF.
func (t *Train) Fragmentable() bool {
	return t.Version() == packet.Version4 && !packet.IPv4(t.pkt).DontFragment()
}

// Destination is the destination address of all packets of the train.
func (t *Train) Destination() netip.Addr { return packet.Destination(t.pkt) }
