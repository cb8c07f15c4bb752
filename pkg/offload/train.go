// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/packet"
)

// Train is one element read from a TUN: a single packet, or a TSO or USO packet that stands for several. The zero value
// is ready for Parse, and may be used again and again. A Train refers to the packet it parsed and never changes it,
// except in Finish. Methods may be called by several goroutines at once after Parse, none but Parse writes.
type Train struct {
	pkt      []byte // the IP packet, cut to the length it claims
	segments int
	segSize  int // payload bytes of each segment but the last; 0 if there is only one
	hdrLen   int // bytes of IP and transport header
	l4       int // where the transport header, or the part to be summed, starts
	csumAt   int // where Finish stores the checksum; 0 for nowhere
	udp      bool
	keepZero bool // a USO train whose sender computed no checksums

	// Sums over the headers, less the fields that differ between segments.
	ipSum uint64
	l4Sum uint64
}

// Len returns the bytes of the packet that was parsed.
func (t *Train) Len() int { return len(t.pkt) }

// FlowHash returns packet.FlowHash of the packet that was parsed.
func (t *Train) FlowHash() uint32 { return packet.FlowHash(t.pkt) }

// Parse takes an element as the TUN returned it: the decoded virtio-net header and the packet behind it, to which the
// Train refers from then on. It trusts nothing: lengths, offsets and header sizes are taken from the packet, and those in
// h have to fit them. If it returns another reason than drop.None the Train must not be used: drop.TXMalformed says that
// the packet is no IP packet or lies about its length, drop.TXVnetHeader that h contradicts the packet.
func (t *Train) Parse(h VnetHdr, pkt []byte) drop.Reason {
	n, ok := packet.Length(pkt)
	if !ok {
		return drop.TXMalformed
	}
	*t = Train{pkt: pkt[:n], segments: 1}
	if h.GSOType == GSONone {
		return t.parseSingle(h)
	}
	// The kernel segments all that the buffer holds; a different claim (BIG TCP claims 0) is never right.
	if n != len(pkt) {
		return drop.TXMalformed
	}
	return t.parseGSO(h)
}

// parseSingle checks where a partial checksum is to be completed. Any transport protocol may ask for that.
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

// parseGSO finds the headers of a train and sums what its segments have in common.
func (t *Train) parseGSO(h VnetHdr) drop.Reason {
	tr, ok := packet.FindTransport(t.pkt)
	if !ok {
		return drop.TXMalformed
	}
	if tr.Fragment || !h.fits(packet.VersionOf(t.pkt), tr) {
		return drop.TXVnetHeader
	}
	// A routing header among extension headers hides the destination that the pseudo-header needs; only a partial sum
	// knows it then.
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

// fits tells whether a GSO header speaks of the packet it came with.
func (h *VnetHdr) fits(v packet.Version, tr packet.Transport) bool {
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

// parseTransport finds where the payload starts.
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
		t.ipSum = packet.Sum(ip, less16(uint16(ip.TotalLen()))+less16(ip.ID())+less16(ip.Checksum()))
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
		packet.Sum(header, less16(h.Checksum())+less32(h.Seq())+less16(uint16(h.Flags())))
}

// pseudoSum returns the sum of the pseudo-header without a length. A partial checksum holds it with the whole train's
// length, and is believed as the kernel believes it; otherwise it is taken from the IP header.
func (t *Train) pseudoSum(partial bool, proto packet.Protocol, check uint16) uint64 {
	if partial {
		return uint64(check) + less16(uint16(len(t.pkt)-t.l4))
	}
	return packet.PseudoSum(t.pkt, proto, 0)
}

// less16 and less32 return what takes v out of a ones' complement sum.
func less16(v uint16) uint64 { return uint64(^v) }
func less32(v uint32) uint64 { return uint64(^v) }

// Segments is the number of inner packets in the train; 1 for a single packet.
func (t *Train) Segments() int { return t.segments }

// SegmentLen is the length in bytes of each inner packet but the last; of a single packet, its length.
func (t *Train) SegmentLen() int {
	if t.segments == 1 {
		return len(t.pkt)
	}
	return t.hdrLen + t.segSize
}

// LastLen is the length in bytes of the last inner packet.
func (t *Train) LastLen() int { return len(t.pkt) - (t.segments-1)*t.segSize }

// Destination is the address all packets of the train go to.
func (t *Train) Destination() netip.Addr { return packet.Destination(t.pkt) }
