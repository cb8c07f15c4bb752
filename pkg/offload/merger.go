// SPDX-License-Identifier: Apache-2.0

package offload

import "github.com/ropewalk/ropewalk/pkg/packet"

// MaxSegments is the largest number of packets in one merged element: more USO segments than this are refused by TUN
// (UDP_MAX_SEGMENTS before Linux 6.11, checked since commit fc8b2a619469), and UDP GRO of Linux stops there too.
const MaxSegments = 64

// Sink takes elements for a TUN.
type Sink interface {
	// WriteElement takes one element, as tun.Queue's Write does: parts[0] starts with the virtio-net header. The parts
	// are only valid until it returns.
	WriteElement(parts [][]byte) error
}

// Merger joins inner packets into as few elements as the rules of the kernel's GRO allow. The order of packets inside a
// flow is always kept; packets of different flows may pass each other. It copies headers, never payload, and after it
// has seen its largest batch it allocates nothing. It is owned by one goroutine.
//
// Before a packet is merged its checksums are verified, because the kernel takes a merged one's for granted. A packet
// with a wrong checksum, or one that cannot be merged for any other reason, goes out alone and unchanged, so that the
// stack that it is for judges it.
//
// Two things change on the way. Where all packets of a train have one IPv4 ID, which only DF allows, the kernel counts
// up from it when it splits the train: virtio has no word for a fixed ID, and with DF it means nothing (RFC 6864). And
// a UDP datagram without a checksum (IPv4 only: VXLAN and the like) that was merged has a right one afterwards: TUN takes
// USO elements with a partial checksum only (Linux commit fc8b2a619469), and the kernel completes it when it splits
// them. Over IPv6 a datagram without a checksum is for its receiver to refuse, so it stays alone.
type Merger struct {
	uso      bool
	elements []element
	segments []segment
	flows    flowTable
	last     int32 // the element used last; -1 for none
	parts    [1 + MaxSegments][]byte
	header   [VnetHdrLen + packet.IPv6HeaderLen + 60]byte
}

// element is a packet, or several that have been merged.
type element struct {
	layout
	pkt      []byte // the first packet
	first    int32  // index of the second packet's payload in segments
	tail     int32  // index of the last one's
	slot     int32  // where the flow table has it; closed if negative
	count    int32  // packets in it
	length   int    // bytes of the merged IP packet
	size     int    // payload bytes of each packet but the last
	seq      uint32 // TCP: the sequence number after the last
	flags    packet.TCPFlags
	fixedID  bool // IPv4: all packets have one ID, instead of counting up
	summed   bool // the first packet came with AddSummed
	verified bool // it has been found to be right
}

// segment is the payload of a merged packet, and the index of the one that follows it in its element.
type segment struct {
	payload []byte
	next    int32
}

const none = -1

// NewMerger returns a Merger. With uso it merges UDP datagrams too; without, only TCP.
func NewMerger(uso bool) *Merger {
	const batch = 256
	return &Merger{
		uso:      uso,
		elements: make([]element, 0, batch),
		segments: make([]segment, 0, batch),
		last:     none,
	}
}

// ChecksumsOK verifies the checksums of an inner IP packet, cut to its IP length. It is false for what is never merged.
func ChecksumsOK(pkt []byte) bool {
	l := layoutOf(pkt)
	return l.kind != opaque && l.checksumsOK(pkt)
}

// Add takes one inner IP packet, cut to its IP length. It refers to pkt, which must not change, until Flush.
func (m *Merger) Add(pkt []byte) { m.add(pkt, false) }

// AddSummed is Add for a packet that ChecksumsOK has found right: nothing but its headers is read. What comes out is the same.
func (m *Merger) AddSummed(pkt []byte) { m.add(pkt, true) }

func (m *Merger) add(pkt []byte, summed bool) {
	l := layoutOf(pkt)
	switch {
	case l.kind.udp() && !m.uso:
		m.alone(l, pkt)
		return
	case l.kind == opaque:
		// It may be a fragment, or an unusual packet, of any flow between its two hosts.
		m.closePair(pkt)
		m.alone(l, pkt)
		return
	}
	at := m.find(l, pkt)
	if at == none {
		m.begin(l, pkt, summed)
		return
	}
	e := &m.elements[at]
	if !e.accepts(l, pkt) || !e.verify() {
		m.close(e)
		m.begin(l, pkt, summed)
		return
	}
	if !summed && !l.checksumsOK(pkt) {
		m.close(e)
		m.alone(l, pkt)
		return
	}
	m.join(at, l, pkt)
}

// alone adds an element that nothing can join.
func (m *Merger) alone(l layout, pkt []byte) {
	m.elements = append(m.elements, element{
		layout: l, pkt: pkt, first: none, tail: none, slot: none, count: 1, length: len(pkt),
	})
}
