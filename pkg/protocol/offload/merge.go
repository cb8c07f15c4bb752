// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// open adds a train for a packet, and keeps it open if packets may join it.
func (m *Merger) open(l layout, pkt []byte, summed bool) {
	m.addSingle(l, pkt)
	if !l.canContinue(pkt) {
		return
	}
	i := int32(len(m.trains) - 1)
	e := &m.trains[i]
	e.size = len(pkt) - int(l.hdrLen)
	e.trusted = summed
	if !l.kind.udp() {
		e.seq = packet.TCPHeader(pkt[l.l4:]).Seq() + uint32(e.size)
	}
	m.track(i)
}

// join appends the payload of an accepted packet to train i, and closes the train if no packet may follow.
func (m *Merger) join(i int32, l layout, pkt []byte) {
	e := &m.trains[i]
	payload := pkt[l.hdrLen:]
	m.segments = append(m.segments, segment{payload, none})
	at := int32(len(m.segments) - 1)
	if e.first == none {
		e.first = at
		e.fixedID = !l.kind.v6() && load16(e.pkt[4:]) == load16(pkt[4:])
	} else {
		m.segments[e.tail].next = at
	}
	e.tail = at
	e.count++
	e.length += len(payload)
	final := len(payload) < e.size || e.count == MaxSegments
	if !l.kind.udp() {
		flags := packet.TCPHeader(pkt[l.l4:]).Flags() & (packet.FIN | packet.PSH)
		e.seq += uint32(len(payload))
		e.flags |= flags
		final = final || flags != 0
	}
	if final {
		m.close(e)
	}
}

// verify verifies the first packet's checksums once: a packet that stays single is never summed.
func (e *mergedTrain) verify() bool {
	e.verified = e.verified || e.trusted || e.checksumsOK(e.pkt)
	return e.verified
}

// accepts reports whether a packet of the train's flow continues the train.
func (e *mergedTrain) accepts(l layout, pkt []byte) bool {
	size := len(pkt) - int(l.hdrLen)
	if size == 0 || size > e.size || e.length+size > packet.MaxLen {
		return false
	}
	if l.kind.v6() {
		// Version, traffic class and flow label; hop limit.
		if load32(e.pkt) != load32(pkt) || e.pkt[7] != pkt[7] {
			return false
		}
	} else if !e.acceptsIPv4(pkt) {
		return false
	}
	if l.kind.udp() {
		zero, first := load16(pkt[l.l4+6:]) == 0, load16(e.pkt[l.l4+6:]) == 0
		return zero == first
	}
	return e.acceptsTCP(l, pkt)
}

// acceptsIPv4 is the rule of inet_gro_flush. All fields but length and checksum are equal. The ID
// increments, or stays if DF makes it meaningless (RFC 6864).
func (e *mergedTrain) acceptsIPv4(pkt []byte) bool {
	a, b := packet.IPv4(e.pkt), packet.IPv4(pkt)
	// Version, IHL and TOS; flags (fragments are opaque); TTL.
	if load16(a) != load16(b) || load16(a[6:]) != load16(b[6:]) || a[8] != b[8] {
		return false
	}
	step := b.ID() - a.ID()
	if e.count == 1 && a.DontFragment() && step == 0 || e.fixedID {
		return step == 0
	}
	return step == uint16(e.count)
}

// acceptsTCP is the rule of tcp_gro_receive: the next sequence number, and all other fields equal
// except three flags. FIN and PSH may end the train, and only its first packet may have CWR.
func (e *mergedTrain) acceptsTCP(l layout, pkt []byte) bool {
	a, b := packet.TCPHeader(e.pkt[l.l4:]), packet.TCPHeader(pkt[l.l4:])
	const mayDiffer = uint32(packet.FIN|packet.PSH|packet.CWR) << 8
	switch {
	case b.Seq() != e.seq, b.Flags()&packet.CWR != 0:
		return false
	case (load32(a[12:])^load32(b[12:]))&^mayDiffer != 0: // data offset, flags, window
		return false
	case load32(a[8:]) != load32(b[8:]), load16(a[18:]) != load16(b[18:]): // acknowledgment, urgent pointer
		return false
	}
	size := int(l.hdrLen - l.l4)
	return size == packet.TCPHeaderLen || bytes.Equal(a[packet.TCPHeaderLen:size], b[packet.TCPHeaderLen:size])
}
