// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net"
	"time"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/offload"
	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

const (
	// rxSlots bounds how many datagrams or coalesced runs may wait in a lane.
	rxSlots = maxQueued
	// maxRunMessages is the most messages a 64 KiB receive can hold: they are at least 32 bytes each.
	maxRunMessages = 65536 / wire.DataOverhead
	// bulkThreshold is the size from which a received run is worth an immediate write: it fills trains by itself, and what
	// it holds is still in the cache.
	bulkThreshold = 16 << 10
	// quantum is how much bulk is opened before the lane looks at what has come behind it, in bytes: some 50 µs of work.
	quantum = 64 << 10
)

// receiver is the state of one lane's way in, used by one goroutine.
type receiver struct {
	lane *lane
	rxQueue
	opened  []session.Message
	scratch session.Scratch
	merger  *offload.Merger
	routes  routeCache
	ahead   lookahead
	now     int64
	packets int // since the last account
	bytes   int
	trains  int
	sizes   RunSizes
}

// newReceiver returns a receiver that takes up to n elements at a time.
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

// receive carries runs from the underlay to the TUN queue until conn is closed.
func (l *lane) receive(conn underlay.Lane) { newReceiver(l, rxSlots).run(conn, conn.TryRecv) }

// run carries what conn receives until it is closed. more is how to receive without waiting; nil if that is not worth it.
func (r *receiver) run(conn underlay.Receiver, more func([]underlay.Datagrams) int) {
	for {
		var err error
		if r.count == 0 {
			r.count, err = conn.Recv(r.free())
		} else if more != nil {
			r.count += more(r.free())
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

// handleQueued handles what is sparse, and a quantum of the rest.
func (r *receiver) handleQueued() {
	r.now = r.lane.engine.cfg.Clock()
	first := r.sparseFirst()
	elements := bits.OnesCount64(first)
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
	elements += r.handleOldest()
	r.retire()
	r.lane.stats.rx.add(r.packets, r.bytes, r.trains, elements)
	r.lane.stats.rx.sizes.publish(&r.sizes)
	r.packets, r.bytes, r.trains, r.sizes = 0, 0, 0, RunSizes{}
}

// sparseFirst is sparse, less what peers have sent that seem to move: where one is, the last of its messages says.
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

// sender returns the peer that d, not authenticated yet, claims to come from, and whether that is known to be elsewhere. It
// is nil when nobody's data messages are there.
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

// handleOldest handles the oldest elements until a quantum of bulk was among them, and returns how many.
func (r *receiver) handleOldest() (elements int) {
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
		elements++
		r.sizes.noteBytes(d.N, d.SegSize)
		if d.N >= bulkThreshold {
			bulk += d.N
			r.flush()
		}
	}
	r.flush()
	return elements
}

// handleDatagrams cuts what arrived in one piece into messages. Data messages of one session that follow each other are
// opened together.
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

// dataRun returns the part of buf, which starts with a data message, whose messages are all for that receiver: type
// and receiver index are the first eight bytes of each.
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

// openRun opens a run of data messages for one receiver index, a part of d, and hands what is inside to the merger.
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

// deliver takes the messages of one run, a part of d, as they were opened. Bit i of summed says that the checksums of the
// packet in message i are right.
func (r *receiver) deliver(s *Session, keys *session.Keypair, opened []session.Message, summed uint64, d *underlay.Datagrams) {
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
			if !r.deliverPacket(m.Plain, s.Peer, d.ECN, summed>>i&1 != 0) {
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

// deliverPacket checks one decrypted packet of p and gives it to the merger, or drops it. A mark that its outer header met on the
// way goes on with it (RFC 6040, section 4.2); like the in-kernel device, ropewalk lets packets pass that cannot bear one.
func (r *receiver) deliverPacket(plain []byte, p *Peer, outer packet.ECN, summed bool) bool {
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
	if summed {
		r.merger.AddSummed(plain)
	} else {
		r.merger.Add(plain)
	}
	return true
}

// received notes that authentic messages came in under keys. A hello says in words where the peer is, and may come from
// a port that is not known yet to be one of the peer's.
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

// flush writes what the merger holds to the TUN.
func (r *receiver) flush() {
	// The error itself says nothing that the count does not: the kernel's reasons are those of a full or closed queue.
	failed, _ := r.merger.Flush(r)
	r.drop(drop.RXTUNWrite, failed)
}

// WriteElement writes one merged element to the TUN; it implements offload.Sink.
func (r *receiver) WriteElement(parts [][]byte) error {
	r.trains++
	return r.lane.queue.Write(parts)
}

func (r *receiver) drop(reason drop.Reason, n int) { r.lane.stats.drops.Add(reason, n) }
