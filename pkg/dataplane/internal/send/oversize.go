// SPDX-License-Identifier: Apache-2.0

package send

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// paddingLimit returns the plaintext length in bytes that padding of packets to p must not
// exceed. It is the path MTU if that is less than the TUN's MTU, as in the in-kernel WireGuard
// (calculate_skb_padding).
func (t *Transmitter) paddingLimit(p *lane.Peer) int { return min(t.mtu, p.PathLimit()) }

// enqueueOversize handles the parsed train, without the first skip packets, whose packets exceed the limit of p.
func (t *Transmitter) enqueueOversize(slot []byte, p *lane.Peer, keys *session.Keypair, source, skip, limit int) {
	switch {
	case t.train.Fragmentable():
		t.enqueueFragments(p, keys, source, skip, limit)
	case t.train.Version() == packet.Version6 && t.train.SegmentLen() <= packet.IPv6MinMTU:
		t.enqueueMessages(slot, p, keys, source, skip)
	default:
		t.icmp.answer(t, skip, limit)
		t.out.dropForPeer(p, drop.TXPacketTooBig, t.train.Segments()-skip)
		t.noteRefused(p, source, skip)
	}
}

// enqueueFragments appends the packets of the parsed IPv4 train, without the first skip, in fragments of at most limit
// bytes each.
func (t *Transmitter) enqueueFragments(p *lane.Peer, keys *session.Keypair, source, skip, limit int) {
	if t.spray.on {
		keys, source = t.spray.assign(t, p, keys, source)
	}
	t.noteFlow(p, source, skip)
	for i := skip; i < t.train.Segments(); i++ {
		ip := t.segment(i)
		size := len(ip) - packet.IPv4(ip).HeaderLen()
		for at := 0; at < size; {
			// One message is added to each allocated slot, so a flush, which empties the arena, comes before both.
			slot := t.out.allocate(wire.DataOverhead + min(len(ip), limit) + wire.PaddingMultiple)
			n, next := packet.WriteFragment(slot[wire.DataHeaderLen:], ip, at, min(len(ip), limit))
			if m := t.enqueueSingle(slot, n, p, keys, source); m != nil {
				m.inner += n
				if i == skip && at == 0 {
					m.trains++
				}
			}
			at = next
		}
	}
}

// segment returns packet i of the parsed train, complete and valid until the next call.
func (t *Transmitter) segment(i int) []byte {
	if t.scratchPacket == nil {
		t.scratchPacket = make([]byte, packet.MaxLen)
	}
	t.train.Split(t.scratchPacket, packet.MaxLen, 0, i, 1)
	n := t.train.SegmentLen()
	if i == t.train.Segments()-1 {
		n = t.train.LastLen()
	}
	return t.scratchPacket[:n]
}

// refuse drops the parsed train, for which there is no peer or no endpoint, and answers it like the in-kernel WireGuard.
func (t *Transmitter) refuse(p *lane.Peer) {
	t.icmp.answer(t, 0, hostUnreachable)
	if p == nil {
		t.out.drop(drop.TXNoPeer, t.train.Segments())
		return
	}
	t.out.dropForPeer(p, drop.TXNoEndpoint, t.train.Segments())
}
