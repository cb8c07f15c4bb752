// SPDX-License-Identifier: Apache-2.0

package offload

import "github.com/ropewalk/ropewalk/pkg/protocol/packet"

// Flush writes all trains to s, in the order in which their first packets were added, and empties the Merger. If s
// rejects a train, the others are written nevertheless. Flush returns the number of packets in rejected trains, and
// the first error.
func (m *Merger) Flush(s Sink) (failed int, err error) {
	for i := range m.trains {
		e := &m.trains[i]
		if werr := s.WriteTrain(m.buffersOf(e)); werr != nil {
			failed += int(e.count)
			if err == nil {
				err = werr
			}
		}
	}
	m.trains, m.segments = m.trains[:0], m.segments[:0]
	m.flows.reset()
	m.last = none
	return failed, err
}

// buffersOf returns the buffers of e for a TUN write, valid until the next call.
func (m *Merger) buffersOf(e *mergedTrain) [][]byte {
	if e.count == 1 {
		h := VnetHdr{}
		if e.verified {
			h.Flags = FlagDataValid
		}
		h.Encode(m.header[:])
		m.buffers[0], m.buffers[1] = m.header[:VnetHdrLen], e.pkt
		return m.buffers[:2]
	}
	h := e.vnetHdr()
	h.Encode(m.header[:])
	size := VnetHdrLen + int(e.hdrLen)
	e.mergedHeader(m.header[VnetHdrLen:size])
	m.buffers[0], m.buffers[1] = m.header[:size], e.pkt[e.hdrLen:]
	n := 2
	for at := e.first; at != none; at = m.segments[at].next {
		m.buffers[n] = m.segments[at].payload
		n++
	}
	return m.buffers[:n]
}

// vnetHdr returns the virtio-net header of a merged train.
func (e *mergedTrain) vnetHdr() VnetHdr {
	h := VnetHdr{
		Flags:      FlagNeedsCsum,
		HdrLen:     uint16(e.hdrLen),
		GSOSize:    uint16(e.size),
		CsumStart:  uint16(e.l4),
		CsumOffset: packet.TCPChecksumOffset,
	}
	switch e.kind {
	case tcp4:
		h.GSOType = GSOTCPv4
	case tcp6:
		h.GSOType = GSOTCPv6
	default:
		h.GSOType, h.CsumOffset = GSOUDPL4, packet.UDPChecksumOffset
		return h
	}
	if packet.TCPHeader(e.pkt[e.l4:]).Flags()&packet.CWR != 0 {
		h.GSOType |= GSOECN
	}
	return h
}

// mergedHeader writes the headers of the whole train to dst: the first packet's headers, with the
// pseudo-header sum in the checksum field.
func (e *mergedTrain) mergedHeader(dst []byte) {
	copy(dst, e.pkt)
	if e.kind.v6() {
		packet.IPv6(dst).SetPayloadLen(e.length - packet.IPv6HeaderLen)
	} else {
		ip := packet.IPv4(dst[:packet.IPv4HeaderLen])
		ip.SetTotalLen(e.length)
		ip.SetChecksum(0)
		ip.SetChecksum(packet.Checksum(ip))
	}
	l4, n := dst[e.l4:], e.length-int(e.l4)
	if e.kind.udp() {
		h := packet.UDPHeader(l4)
		h.SetLen(n)
		h.SetChecksum(packet.Fold(packet.PseudoSum(dst, packet.UDP, n)))
		return
	}
	h := packet.TCPHeader(l4)
	h.SetFlags(h.Flags() | e.flags)
	h.SetChecksum(packet.Fold(packet.PseudoSum(dst, packet.TCP, n)))
}
