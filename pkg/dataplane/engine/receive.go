// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// rxSlots is the number of datagrams, single or coalesced, that may wait in a lane.
	rxSlots = maxQueued
	// maxRunMessages is the largest number of messages in a 64 KiB receive buffer: each has at least 32 bytes.
	maxRunMessages = 65536 / wire.DataOverhead
	// bulkThreshold is the size of a received run, in bytes, from which the lane writes it to the TUN at once: it fills trains
	// alone, and its contents are still in the cache.
	bulkThreshold = 16 << 10
	// quantum is the number of bulk bytes that the lane opens before it receives again: some 50 µs of work.
	quantum = 64 << 10
)

// receiver is the receive direction of one lane, used by one goroutine.
type receiver struct {
	lane *lane
	rxQueue
	opened  []session.Message
	scratch session.Scratch
	merger  *offload.Merger
	routes  routeCache
	ahead   lookahead
	now     int64
	packets int // since handleQueued last updated the counters
	bytes   int
	trains  int
	sizes   RunSizes
}

// newReceiver returns a receiver with a queue of n datagrams.
func newReceiver(l *lane, n int) *receiver {
	r := &receiver{
		lane:    l,
		rxQueue: rxQueue{ring: make([]underlay.Datagrams, n)},
		opened:  make([]session.Message, maxRunMessages),
		merger:  offload.NewMerger(l.engine.cfg.Device.Features().USO),
	}
	const size = 65536 + cacheStagger
	all := make([]byte, n*size)
	for i := range r.ring {
		r.ring[i].Buf = all[i*size : i*size+65536 : i*size+65536]
	}
	return r
}

// receive moves packets from the underlay to the TUN queue until conn is closed.
func (l *lane) receive(conn underlay.Lane) { newReceiver(l, rxSlots).run(conn, conn.TryRecv) }

// run receives from conn until it is closed. tryRecv receives without blocking; nil if that does not pay.
func (r *receiver) run(conn underlay.Receiver, tryRecv func([]underlay.Datagrams) int) {
	for {
		var err error
		if r.count == 0 {
			r.count, err = conn.Recv(r.free())
		} else if tryRecv != nil {
			r.count += tryRecv(r.free())
		}
		switch {
		case err == nil:
			r.handleQueued()
		case errors.Is(err, net.ErrClosed):
			return
		default:
			r.drop(drop.RXReceive, 1)
			time.Sleep(errorPause)
		}
	}
}

// handleQueued handles all sparse datagrams and a quantum of the others.
func (r *receiver) handleQueued() {
	r.now = r.lane.engine.cfg.Clock()
	first := r.sparseFirst()
	datagrams := bits.OnesCount64(first)
	for rest := first; rest != 0; rest &= rest - 1 {
		d := r.at(bits.TrailingZeros64(rest))
		r.sizes.noteBytes(d.N, d.SegSize)
		r.handleDatagrams(d)
	}
	if first != 0 {
		r.flush()
	}
	r.handled |= first
	r.reportBacklog()
	datagrams += r.handleOldest()
	r.retire()
	r.lane.stats.rx.add(r.packets, r.bytes, r.trains, datagrams)
	r.lane.stats.rx.sizes.publish(&r.sizes)
	r.packets, r.bytes, r.trains, r.sizes = 0, 0, 0, RunSizes{}
}

// sparseFirst returns sparse without the datagrams of peers that seem to roam: the last message must determine the endpoint,
// so they stay in order.
func (r *receiver) sparseFirst() uint64 {
	first := r.sparse()
	if first == 0 {
		return 0
	}
	var peers [maxQueued]*Peer
	moving := uint64(0)
	for k := range r.count {
		if r.handled>>k&1 != 0 {
			continue
		}
		d, moves := r.at(k), false
		if peers[k], moves = r.sender(d); moves {
			moving |= 1 << k
		}
	}
	for ; moving != 0; moving &= moving - 1 {
		p := peers[bits.TrailingZeros64(moving)]
		for rest := first; rest != 0; rest &= rest - 1 {
			if k := bits.TrailingZeros64(rest); peers[k] == p {
				first &^= 1 << k
			}
		}
	}
	return first
}

// sender returns the peer that d claims to come from, before authentication, and whether d came from another endpoint than
// the known one. It returns nil if d does not begin with a data message of a known session.
func (r *receiver) sender(d *underlay.Datagrams) (p *Peer, moves bool) {
	kind, reason := wire.Classify(d.Buf[:d.N])
	if reason != drop.None || kind != wire.TypeData {
		return nil, false
	}
	s, _ := r.lane.engine.Sessions.Lookup(wire.ReceiverIndex(d.Buf))
	if s == nil {
		return nil, false
	}
	known := s.Peer.Endpoint.Load()
	if known == nil {
		return s.Peer, true
	}
	at, _ := s.Peer.canonicalEndpoint(known, d.From)
	return s.Peer, at != *known
}

// handleOldest handles the oldest datagrams up to a quantum of bulk, and returns their number.
func (r *receiver) handleOldest() (datagrams int) {
	bulk := 0
	for k := 0; k < r.count && bulk < quantum; k++ {
		if r.handled>>k&1 != 0 {
			continue
		}
		d := r.at(k)
		r.submitAhead(k)
		if !r.collectAhead(d) {
			r.handleDatagrams(d)
		}
		r.handled |= 1 << k
		datagrams++
		r.sizes.noteBytes(d.N, d.SegSize)
		if d.N >= bulkThreshold {
			bulk += d.N
			r.flush()
		}
	}
	r.flush()
	return datagrams
}

// handleDatagrams splits coalesced datagrams into messages. Consecutive data messages of one session are opened together.
func (r *receiver) handleDatagrams(d *underlay.Datagrams) {
	if d.Truncated {
		r.drop(drop.RXTruncated, 1)
		return
	}
	if d.N == 0 {
		r.drop(drop.RXTooShort, 1)
	}
	size := d.SegSize
	if size <= 0 {
		size = d.N
	}
	for rest := d.Buf[:d.N]; len(rest) > 0; {
		msg := rest[:min(size, len(rest))]
		kind, reason := wire.Classify(msg)
		switch {
		case reason != drop.None:
			r.drop(reason, 1)
			rest = rest[len(msg):]
		case kind == wire.TypeData:
			run := dataRun(rest, size)
			r.openRun(run, size, d)
			rest = rest[len(run):]
		default:
			r.drop(r.lane.engine.cfg.Control.Handshake(msg, d.From), 1)
			rest = rest[len(msg):]
		}
	}
}

// dataRun returns the longest prefix of buf whose data messages all have the receiver index of the first. Type and receiver
// index are the first eight bytes of each message.
func dataRun(buf []byte, size int) []byte {
	head := binary.LittleEndian.Uint64(buf)
	end := min(size, len(buf))
	for end < len(buf) {
		next := buf[end:min(end+size, len(buf))]
		if len(next) < wire.DataOverhead || binary.LittleEndian.Uint64(next) != head {
			break
		}
		end += len(next)
	}
	return buf[:end]
}

// openRun decrypts a run of data messages for one receiver index, part of d, and passes the packets to the merger.
func (r *receiver) openRun(run []byte, size int, d *underlay.Datagrams) {
	s, _ := r.lane.engine.Sessions.Lookup(wire.ReceiverIndex(run))
	var keys *session.Keypair
	if s != nil {
		keys = s.Keys.Load()
	}
	if keys == nil {
		r.drop(drop.RXUnknownIndex, session.Messages(len(run), size))
		return
	}
	n := keys.OpenTrain(&r.scratch, r.now, run, size, r.opened)
	r.deliver(s, keys, r.opened[:n], 0, d)
}

// deliver passes on the decrypted messages of one run, part of d. Bit i of checksumOK means that the checksums of the packet
// in message i are correct.
func (r *receiver) deliver(s *Session, keys *session.Keypair, opened []session.Message, checksumOK uint64, d *underlay.Datagrams) {
	authentic, refused, rejected, data, hello := 0, 0, 0, false, false
	for i := range opened {
		m := &opened[i]
		if m.Drop != drop.None {
			r.drop(m.Drop, 1)
			refused++
			continue
		}
		authentic += len(m.Plain) + wire.DataOverhead
		switch {
		case len(m.Plain) == 0:
		case wire.IsHello(m.Plain):
			hello = true
			if why := s.Peer.SlowPath.Hello(m.Plain, d.From); why != drop.None {
				r.drop(why, 1)
				rejected++
			}
		default:
			data = true
			if !r.deliverPacket(m.Plain, s.Peer, d.ECN, checksumOK>>i&1 != 0) {
				rejected++
			}
		}
	}
	count := s.Peer.trafficOf(r.lane.index)
	if refused+rejected > 0 {
		count.rxDrops.Add(uint64(refused + rejected))
	}
	if authentic > 0 {
		count.rx.Add(uint64(authentic))
		count.rxPackets.Add(uint64(len(opened) - refused))
		s.Peer.received(r.now, keys, data, hello, d.From)
	}
}

// deliverPacket checks one decrypted packet of p and passes it to the merger, or drops it. It copies a congestion mark of the
// outer header to the packet (RFC 6040, section 4.2). Like the in-kernel WireGuard, it passes packets that cannot carry one.
func (r *receiver) deliverPacket(plain []byte, p *Peer, outer packet.ECN, checksumOK bool) bool {
	n, ok := packet.Length(plain)
	if !ok {
		r.drop(drop.RXInnerMalformed, 1)
		return false
	}
	plain = plain[:n]
	if r.routes.lookup(&r.lane.engine.Routes, packet.Source(plain)) != p {
		r.drop(drop.RXInnerSpoofed, 1)
		return false
	}
	if outer == packet.CE {
		packet.SetCE(plain)
	}
	r.packets++
	r.bytes += n
	if checksumOK {
		r.merger.AddVerified(plain)
	} else {
		r.merger.Add(plain)
	}
	return true
}

// received updates endpoint, session and timers after authentic messages under keys. A hello names its endpoint explicitly,
// and may come from a source port that is not known yet, so it does not update the endpoint here.
func (p *Peer) received(now int64, keys *session.Keypair, data, hello bool, from underlay.Endpoint) {
	if !hello {
		p.noteSource(from)
	}
	if p.Unconfirmed.Load() == keys {
		p.SlowPath.Confirm(keys)
	}
	p.Activity.Received(now, data)
	if rekeyDue(keys, now, true) {
		p.SlowPath.Rekey()
	}
}

// flush writes the merged packets to the TUN.
func (r *receiver) flush() {
	// The error adds nothing to the count: the kernel rejects packets only if the queue is full or closed.
	failed, _ := r.merger.Flush(r)
	r.drop(drop.RXTUNWrite, failed)
}

// WriteTrain writes one merged train to the TUN; it implements offload.Sink.
func (r *receiver) WriteTrain(parts [][]byte) error {
	r.trains++
	return r.lane.queue.Write(parts)
}

func (r *receiver) drop(reason drop.Reason, n int) { r.lane.stats.drops.Add(reason, n) }
