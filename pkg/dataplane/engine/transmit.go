// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"os"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// txSlots is the number of small packets read from a TUN queue before they are sent.
	txSlots = 128
	// txTrains bounds them until so many wait: a large train, which ends a read, then needs no memory of the others.
	txTrains = 16
	// headroom places the packet after a virtio-net header 16 bytes into its slot. The header of a data message then replaces
	// the virtio-net header, and a single packet is sealed in place.
	headroom = wire.DataHeaderLen - offload.VnetHdrLen
	// tailroom is the space behind the largest train for padding and the authentication tag.
	tailroom = 64
)

// transmitter is the send direction of one lane, used by one goroutine.
type transmitter struct {
	lane     *lane
	reader   trainReader
	drops    *drop.Counters
	*txBatch            // the batch that is being filled
	spares   []*txBatch // unused batches: neither being filled nor in the job ring
	jobs     *workpool.JobRing
	train    offload.Train
	hash     uint32 // of the parsed train's flow; 0 if not computed yet
	scratch  session.Scratch
	now      int64
	mtu      int
	routes   routeCache
	flowlets *spread.Flows  // nil for the slow path
	port     *underlay.Lane // whose sources flowlets has
	flushes  uint64         // number of the next flush, from 1
	queue    txQueue
	load     workload
	spray    sprayer
	stream   *sprayer // of the parsed train; nil unless it is sprayed
	holds    bool     // runs that a full send buffer refuses are kept, not dropped
	icmp     icmpErrors
	// scratchPacket holds one packet that exceeds a path MTU or cannot be delivered; nil until there is one.
	scratchPacket []byte
}

// newTransmitter returns a transmitter that reads up to n trains at a time.
func newTransmitter(l *lane, n int) *transmitter {
	t := &transmitter{
		lane:     l,
		drops:    &l.stats.drops,
		txBatch:  newTxBatch(n),
		jobs:     l.sealJobs,
		flowlets: spread.NewFlows(flowsLog2, spread.DefaultGap),
		flushes:  1,
		holds:    true,
	}
	t.queue.buffers.memory = &l.engine.memory
	share := max(txQueueTotal/max(len(l.engine.lanes), 1), minTXQueue)
	t.queue.limit = min(share, maxTXQueue)
	t.reader = trainReader{lane: l, limit: min(share, readAheadBytes), buffers: bufferSet{memory: &l.engine.memory}, drop: t.dropRead}
	return t
}

// maxWaiting bounds the trains that sendWaiting sends, if a host adds to them all the time. It is more than what a TUN queue has by default, and
// what was read ahead.
var maxWaiting = 2 * tun.QueueLen(1)

// transmit moves trains from the TUN queue to the underlay until the queue is closed, or Stop is called.
func (l *lane) transmit(yield func(bool)) {
	if l.tx == nil {
		l.tx = newTransmitter(l, txSlots)
	}
	t := l.tx
	t.load.yield = yield
	defer func() { t.load.yield = nil }()
	for {
		l.stats.tx.progress.rest()
		n, err := t.read()
		switch {
		case err == nil:
			t.sendBatch(n)
			t.sendQueued()
		case errors.Is(err, os.ErrClosed):
			t.drain()
			return
		default: // a packet that virtio-net cannot describe must not stop the lane
			t.drop(drop.TXTUNRead, 1)
			t.sendQueued()
			time.Sleep(errorPause)
		}
	}
}

// sendWaiting sends what waits in the TUN queue, which no goroutine reads.
func (t *transmitter) sendWaiting() {
	for n, sent := 1, 0; n > 0 && sent < maxWaiting; sent += n {
		if n = t.reader.tryRead(t.txBatch); n > 0 {
			t.sendBatch(n)
			t.sendQueued()
		}
	}
	t.drain()
	t.lane.stats.tx.progress.rest()
}

// errorPause keeps a lane from using a whole core when its TUN queue or underlay fails repeatedly.
const errorPause = time.Millisecond

// sendBatch sends the first n trains read. If workers are available, it also sends the trains that have arrived meanwhile.
func (t *transmitter) sendBatch(n int) {
	t.addTrains(n)
	for !t.retryDue() && t.readMore() {
	}
	t.flush()
}

// addTrains adds the first n trains read to the batch.
func (t *transmitter) addTrains(n int) {
	t.lane.stats.tx.progress.work()
	t.now = t.lane.engine.cfg.Clock()
	t.mtu = int(t.lane.engine.mtu.Load())
	t.notePort()
	for i := range n {
		t.addTrain(t.slots[i], t.sizes[i], t.hashes[i], t.congested[i])
	}
	if t.spray.on { // after the trains: a flow that goes on is sprayed again at once
		t.spray.endIfIdle(t.now)
	}
	t.load.note(0, 0, n, t.now)
}

// notePort forgets the sources of flows when another port is attached, which numbers its sources anew and may have fewer.
func (t *transmitter) notePort() {
	if port := t.lane.conn.Load(); port != t.port {
		t.port = port
		t.flowlets.Reset()
	}
}

// addTrain adds one train of n bytes, which begins with its virtio-net header, to the batch. hash is that of its flow, 0 if not computed yet. If the train was
// congested, it signals that.
func (t *transmitter) addTrain(slot []byte, n int, hash uint32, congested bool) {
	t.hash = hash
	train := slot[headroom : headroom+n]
	if !t.parse(train) {
		return
	}
	t.load.packets += t.train.Segments()
	if isDatagram(train[offload.VnetHdrLen:]) {
		t.load.datagrams += t.train.Segments()
	}
	p := t.routes.lookup(&t.lane.engine.Routes, t.train.Destination())
	if p == nil || p.Endpoint.Load() == nil {
		t.refuse(p)
		return
	}
	source, active := 0, t.queue.active()
	if active {
		if source = t.chooseSource(p); t.queueIfFull(p, source, train) {
			return
		}
	}
	keys := t.keysOrStage(p, train, t.train.Segments())
	if keys == nil {
		return
	}
	if !active {
		source = t.chooseSource(p)
	}
	skip := 0
	if congested {
		skip = t.signalCongestion(p, source, train, t.train.Segments())
	}
	if skip < t.train.Segments() {
		t.enqueue(slot, p, keys, source, skip)
	}
}

// keysOrStage returns the key pair to send with. Without one it stages a train of n packets, which is the parsed one or part of it, until there
// is a session with p, and returns nil.
func (t *transmitter) keysOrStage(p *Peer, train []byte, n int) *session.Keypair {
	if keys := p.Current.Load(); keys.Usable(t.now) {
		return keys
	}
	if t.pendingFor(p) {
		t.flush() // keeps the order
	}
	t.noteStaged(p)
	return p.SlowPath.Stage(train, n)
}

// pendingFor reports whether packets to p may wait to be sent by this lane.
func (t *transmitter) pendingFor(p *Peer) bool {
	return p.trafficOf(t.lane.index).enqueued.Load() == t.flushes
}

// flowHash returns the hash of the parsed train's flow.
func (t *transmitter) flowHash() uint32 {
	if t.hash == 0 {
		t.hash = t.train.FlowHash()
	}
	return t.hash
}

// parse parses a train into t.train. It counts an invalid one as a drop and returns false.
func (t *transmitter) parse(train []byte) bool {
	if len(train) <= offload.VnetHdrLen {
		t.drop(drop.TXVnetHeader, 1)
		return false
	}
	var hdr offload.VnetHdr
	hdr.Decode(train)
	r := t.train.Parse(hdr, train[offload.VnetHdrLen:])
	t.drop(r, 1)
	return r == drop.None
}

// enqueue appends the parsed train, which is in slot if it is a single packet, to the messages to p under keys, without the first skip
// packets.
func (t *transmitter) enqueue(slot []byte, p *Peer, keys *session.Keypair, source, skip int) {
	if limit := p.pathLimit(); t.train.SegmentLen() > limit {
		t.enqueueOversize(slot, p, keys, source, skip, limit)
	} else {
		t.enqueueMessages(slot, p, keys, source, skip)
	}
	t.stream = nil
	p.trafficOf(t.lane.index).enqueued.Store(t.flushes)
}

// enqueueMessages appends the messages of the parsed train. It flushes when there is no room for all.
func (t *transmitter) enqueueMessages(slot []byte, p *Peer, keys *session.Keypair, source, skip int) {
	if t.spray.on {
		keys, source = t.sprayTrain(p, keys, source)
	}
	t.noteFlow(p, source, skip)
	if t.train.Segments() > 1 {
		t.enqueueTrain(p, keys, source, skip)
		return
	}
	n := t.train.LastLen()
	t.train.Finish(slot[wire.DataHeaderLen : wire.DataHeaderLen+n])
	if m := t.enqueueSingle(slot, n, p, keys, source); m != nil {
		m.inner += n
		m.trains++
	}
}

// enqueueSingle appends one plaintext of n bytes, which has room for header and tag in its slot. It returns the run of the
// message, nil if it is too large to send.
func (t *transmitter) enqueueSingle(slot []byte, n int, p *Peer, keys *session.Keypair, source int) *runMeta {
	padded := wire.PaddedLen(n, t.paddingLimit(p))
	msg := slot[:wire.DataOverhead+padded]
	if len(msg) > underlay.MaxDatagramRun {
		t.dropForPeer(p, drop.TXTooBig, 1)
		return nil
	}
	clear(slot[wire.DataHeaderLen+n : wire.DataHeaderLen+padded])
	if t.pending.full() {
		t.flush()
	}
	ecn := packet.ECNOf(msg[wire.DataHeaderLen : wire.DataHeaderLen+n]).Outer()
	m := t.pending.last(source)
	if m == nil || t.stream != nil || !m.accepts(p, keys, ecn, len(msg)) {
		m = t.pending.open(source)
		m.peer, m.keys, m.ecn, m.segSize = p, keys, ecn, len(msg)
		t.reserve(m, 1)
	}
	t.pending.add(m, msg)
	m.segments++
	m.bytes += len(msg)
	m.closed = len(msg) < m.segSize || m.streamed
	return m
}

// enqueueTrain appends the packets of a train, without the first skip, as one run, or more if they do not fit. It takes space in the arena,
// into which they are split when they are sealed. The train must stay where it is until then.
func (t *transmitter) enqueueTrain(p *Peer, keys *session.Keypair, source, skip int) {
	segments, segLen, mtu := t.train.Segments(), t.train.SegmentLen(), t.paddingLimit(p)
	stride := wire.DataOverhead + wire.PaddedLen(segLen, mtu)
	perRun := min(underlay.MaxRunSegments, underlay.MaxDatagramRun/stride)
	if perRun == 0 {
		t.dropForPeer(p, drop.TXTooBig, segments-skip)
		return
	}
	for first := skip; first < segments; first += perRun {
		count, last := min(perRun, segments-first), segLen
		if first+count == segments {
			last = t.train.LastLen()
		}
		l := session.NewLayout(count, segLen, last, mtu)
		dst := t.allocate(l.Size())
		m := t.pending.open(source)
		m.peer, m.keys, m.segSize, m.segments, m.bytes = p, keys, stride, count, l.Size()
		m.inner, m.closed, m.layout, m.train, m.skip = (count-1)*segLen+last, true, l, t.train, first
		m.ecn = t.train.ECN().Outer() // all packets of a train have one
		t.reserve(m, count)
		if first == skip {
			m.trains = 1
		}
		t.pending.add(m, dst)
	}
}

// reserve reserves the counters of a run now if it is sprayed: runs of several sources are sent in another order.
func (t *transmitter) reserve(m *runMeta, messages int) {
	if t.stream != nil {
		m.counter, m.streamed = t.stream.stream.Reserve(messages)
	}
}

// allocate returns n bytes of the arena, n <= arenaLen. It sends the batch first if the arena is full.
func (t *transmitter) allocate(n int) []byte {
	if t.arenaUsed+n > len(t.arena) || t.pending.full() {
		t.flush()
	}
	b := t.arena[t.arenaUsed : t.arenaUsed+n]
	t.arenaUsed += n
	return b
}
