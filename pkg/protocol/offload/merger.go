// SPDX-License-Identifier: Apache-2.0

package offload

import "github.com/ropewalk/ropewalk/pkg/protocol/packet"

// MaxSegments is the largest number of packets in one merged train. TUN rejects more USO segments (UDP_MAX_SEGMENTS
// before Linux 6.11, checked since commit fc8b2a619469), and Linux's UDP GRO has the same limit.
const MaxSegments = 64

// Sink receives trains for a TUN device.
type Sink interface {
	// WriteTrain writes one train as tun.Queue's Write does: buffers[0] starts with the virtio-net header. The
	// buffers are only valid until it returns.
	WriteTrain(buffers [][]byte) error
}

// Merger merges inner packets into as few trains as the rules of the kernel's GRO allow. It keeps the order of
// packets within a flow; packets of different flows may be reordered. It copies headers, never payload. It allocates
// nothing once it has seen its largest batch. One goroutine owns it.
//
// Before merging a packet the Merger verifies its checksums, because the kernel trusts the
// checksums of a merged train. A packet that has a wrong checksum, or cannot be merged for another
// reason, is written single and unchanged. So the receiving stack decides about it.
//
// Merging changes two things. If all packets of a train have the same IPv4 ID, which only DF
// allows, the kernel increments it when it splits the train. The virtio-net header cannot express
// a fixed ID, and with DF the ID is meaningless (RFC 6864). And a merged UDP datagram without a
// checksum (IPv4 only, such as VXLAN) has a correct one afterwards: TUN accepts USO trains with a
// partial checksum only (Linux commit fc8b2a619469), and the kernel completes it when it splits
// them. Over IPv6 the receiver must reject a datagram without a checksum, so it stays single.
type Merger struct {
	uso      bool
	trains   []mergedTrain
	segments []segment
	flows    flowTable
	last     int32 // the train used last; -1 for none
	buffers  [1 + MaxSegments][]byte
	header   [VnetHdrLen + packet.IPv6HeaderLen + 60]byte
}

// mergedTrain is a single packet, or several merged into a train.
type mergedTrain struct {
	layout
	pkt      []byte // the first packet
	first    int32  // index of the second packet's payload in segments
	tail     int32  // index of the last packet's payload
	slot     int32  // its slot in the flow table; closed if negative
	count    int32  // number of packets
	length   int    // bytes of the merged IP packet
	size     int    // payload bytes of each packet but the last
	seq      uint32 // TCP: the sequence number after the last
	flags    packet.TCPFlags
	fixedID  bool // IPv4: all packets have one ID, instead of counting up
	trusted  bool // the first packet was added by AddVerified
	verified bool // its checksums have been verified
}

// segment is the payload of a merged packet, and the index of the next one of its train.
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
		trains:   make([]mergedTrain, 0, batch),
		segments: make([]segment, 0, batch),
		last:     none,
	}
}

// ChecksumsOK verifies the checksums of an inner IP packet, cut to its IP length. It is false for an opaque packet, which
// is never merged.
func ChecksumsOK(pkt []byte) bool {
	l := layoutOf(pkt)
	return l.kind != opaque && l.checksumsOK(pkt)
}

// Add adds one inner IP packet, cut to its IP length. The Merger refers to pkt, which must not change, until Flush.
func (m *Merger) Add(pkt []byte) { m.add(pkt, false) }

// AddVerified is Add for a packet for which ChecksumsOK returned true: it reads only the headers. The result is the same.
func (m *Merger) AddVerified(pkt []byte) { m.add(pkt, true) }

func (m *Merger) add(pkt []byte, summed bool) {
	l := layoutOf(pkt)
	switch {
	case l.kind.udp() && !m.uso:
		m.addSingle(l, pkt)
		return
	case l.kind == opaque:
		// It may be a fragment, or an unusual packet, of any flow between its two hosts.
		m.closeHostPair(pkt)
		m.addSingle(l, pkt)
		return
	}
	at := m.find(l, pkt)
	if at == none {
		m.open(l, pkt, summed)
		return
	}
	e := &m.trains[at]
	if !e.accepts(l, pkt) || !e.verify() {
		m.close(e)
		m.open(l, pkt, summed)
		return
	}
	if !summed && !l.checksumsOK(pkt) {
		m.close(e)
		m.addSingle(l, pkt)
		return
	}
	m.join(at, l, pkt)
}

// addSingle adds a train that no packet can join.
func (m *Merger) addSingle(l layout, pkt []byte) {
	m.trains = append(m.trains, mergedTrain{
		layout: l, pkt: pkt, first: none, tail: none, slot: none, count: 1, length: len(pkt),
	})
}
