// SPDX-License-Identifier: Apache-2.0

package send

import (
	"errors"
	"os"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
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
	// Slots is the number of small packets read from a TUN queue before they are sent.
	Slots = 128
	// txTrains bounds them until so many wait: a large train, which ends a read, then needs no memory of the others.
	txTrains = 16
	// minSealBytes is the minimum number of message bytes for which sealing on another core pays.
	minSealBytes = 8 << 10
)

// Transmitter is the send direction of one lane, used by one goroutine.
type Transmitter struct {
	out      sender
	reader   trainReader
	train    offload.Train
	hash     uint32 // of the parsed train's flow; 0 if not computed yet
	mtu      int
	routes   lane.RouteCache
	flowlets *spread.Flows  // nil for the slow path
	port     *underlay.Lane // whose sources flowlets has
	queue    txQueue
	load     lane.Workload
	spray    sprayer
	stream   *sprayer // of the parsed train; nil unless it is sprayed
	icmp     icmpErrors
	// scratchPacket holds one packet that exceeds a path MTU or cannot be delivered; nil until there is one.
	scratchPacket []byte
}

// New returns a transmitter that reads up to n trains at a time.
func New(l *lane.Lane, n int) *Transmitter {
	t := &Transmitter{
		out:      newSender(l, n),
		flowlets: spread.NewFlows(flowsLog2, spread.DefaultGap),
	}
	t.queue.buffers.Memory = &l.Shared.Memory
	share := max(txQueueTotal/max(l.Shared.Lanes, 1), minTXQueue)
	t.queue.limit = min(share, maxTXQueue)
	t.reader = trainReader{lane: l, limit: min(share, readAheadBytes), buffers: lane.BufferSet{Memory: &l.Shared.Memory}, drop: t.dropRead}
	return t
}

// MaxWaiting bounds the trains that SendWaiting sends, if a host adds to them all the time. It is
// more than a TUN queue of the default length and the trains that were read ahead.
var MaxWaiting = 2 * tun.QueueLen(1)

// Run moves trains from the TUN queue to the underlay until the queue is closed, or Stop is called.
func (t *Transmitter) Run(yield func(bool)) {
	t.load.Yield = yield
	defer func() { t.load.Yield = nil }()
	for {
		t.out.lane.Stats.Tx.Progress.Rest()
		n, err := t.read()
		switch {
		case err == nil:
			t.sendBatch(n)
			t.sendQueued()
		case errors.Is(err, os.ErrClosed):
			t.drain()
			return
		default: // a packet that virtio-net cannot describe must not stop the lane
			t.out.drop(drop.TXTUNRead, 1)
			t.sendQueued()
			time.Sleep(lane.ErrorPause)
		}
	}
}

// SendWaiting sends what waits in the TUN queue, which no goroutine reads.
func (t *Transmitter) SendWaiting() {
	for n, sent := 1, 0; n > 0 && sent < MaxWaiting; sent += n {
		if n = t.reader.tryRead(t.out.batch); n > 0 {
			t.sendBatch(n)
			t.sendQueued()
		}
	}
	t.drain()
	t.out.lane.Stats.Tx.Progress.Rest()
}

// sendBatch sends the first n trains read. If workers are available, it also sends the trains that have arrived meanwhile.
func (t *Transmitter) sendBatch(n int) {
	t.addTrains(n)
	for !t.retryDue() && t.readMore() {
	}
	t.out.flush()
}

// readMore reads trains that have arrived since the last read. With a backlog it then submits the
// current batch as a job. Without one it seals and sends the current batch before it reads. It
// returns false if no trains have arrived. It returns false at once if the current batch is too
// small for a job, or the job ring is unavailable.
func (t *Transmitter) readMore() bool {
	switch {
	case !t.out.jobs.Available(t.out.now) || t.out.batch.bytes() < minSealBytes:
		return false
	case t.out.jobs.Backlogged():
		return t.readAndSubmit()
	}
	t.out.flush()
	n := t.reader.tryRead(t.out.batch)
	t.out.jobs.ReportBacklog(min(n, 1)) // counted in batches: one read fills at most one
	t.addTrains(n)
	return n > 0
}

// readAndSubmit reads trains into another batch, which becomes the current one, and submits the batch before as a job. It returns false,
// and the current batch stays, if no trains have arrived.
func (t *Transmitter) readAndSubmit() bool {
	next := t.out.spareBatch()
	n := t.reader.tryRead(next)
	t.out.jobs.ReportBacklog(min(n, 1))
	if n == 0 {
		t.out.spares = append(t.out.spares, next)
		return false
	}
	b := t.out.batch
	t.out.batch = next
	t.out.submit(b)
	t.addTrains(n)
	t.out.sendSealed()
	return true
}

// addTrains adds the first n trains read to the batch.
func (t *Transmitter) addTrains(n int) {
	t.out.lane.Stats.Tx.Progress.Work()
	t.out.now = t.out.lane.Shared.Clock()
	t.mtu = int(t.out.lane.Shared.MTU.Load())
	t.notePort()
	for i := range n {
		t.addTrain(t.out.batch.slots[i], t.out.batch.sizes[i], t.out.batch.hashes[i], t.out.batch.congested[i])
	}
	if t.spray.on { // after the trains: a flow that goes on is sprayed again at once
		t.spray.endIfIdle(t.out.now)
	}
	t.load.Note(0, 0, n, t.out.now)
}

// notePort forgets the sources of flows when another port is attached, which numbers its sources anew and may have fewer.
func (t *Transmitter) notePort() {
	if port := t.out.lane.Conn.Load(); port != t.port {
		t.port = port
		t.flowlets.Reset()
	}
}

// addTrain adds one train of n bytes, which begins with its virtio-net header, to the batch. hash
// is its flow's hash, 0 if not computed yet. If the train was congested, it signals that.
func (t *Transmitter) addTrain(slot []byte, n int, hash uint32, congested bool) {
	t.hash = hash
	train := slot[lane.Headroom : lane.Headroom+n]
	if !t.parse(train) {
		return
	}
	t.load.Packets += t.train.Segments()
	if lane.IsDatagram(train[offload.VnetHdrLen:]) {
		t.load.Datagrams += t.train.Segments()
	}
	p := t.routes.Lookup(&t.out.lane.Shared.Routes, t.train.Destination())
	if p == nil || p.Endpoint.Load() == nil {
		t.refuse(p)
		return
	}
	source, active := 0, t.active()
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

// keysOrStage returns the key pair to send with. Without one it stages train until there is a
// session with p, and returns nil. train has n packets, and is the parsed train or a part of it.
func (t *Transmitter) keysOrStage(p *lane.Peer, train []byte, n int) *session.Keypair {
	if keys := p.Current.Load(); keys.Usable(t.out.now) {
		return keys
	}
	if t.pendingFor(p) {
		t.out.flush() // keeps the order
	}
	t.noteStaged(p)
	return p.SlowPath.Stage(train, n)
}

// pendingFor reports whether packets to p may wait to be sent by this lane.
func (t *Transmitter) pendingFor(p *lane.Peer) bool {
	return p.TrafficOf(t.out.lane.Index).Enqueued.Load() == t.out.flushes
}

// flowHash returns the hash of the parsed train's flow.
func (t *Transmitter) flowHash() uint32 {
	if t.hash == 0 {
		t.hash = t.train.FlowHash()
	}
	return t.hash
}

// parse parses a train into t.train. It counts an invalid one as a drop and returns false.
func (t *Transmitter) parse(train []byte) bool {
	if len(train) <= offload.VnetHdrLen {
		t.out.drop(drop.TXVnetHeader, 1)
		return false
	}
	var hdr offload.VnetHdr
	hdr.Decode(train)
	r := t.train.Parse(hdr, train[offload.VnetHdrLen:])
	t.out.drop(r, 1)
	return r == drop.None
}

// enqueue appends the parsed train, without its first skip packets, to the messages to p under
// keys. A single packet is in slot.
func (t *Transmitter) enqueue(slot []byte, p *lane.Peer, keys *session.Keypair, source, skip int) {
	if limit := p.PathLimit(); t.train.SegmentLen() > limit {
		t.enqueueOversize(slot, p, keys, source, skip, limit)
	} else {
		t.enqueueMessages(slot, p, keys, source, skip)
	}
	t.stream = nil
	p.TrafficOf(t.out.lane.Index).Enqueued.Store(t.out.flushes)
}

// enqueueMessages appends the messages of the parsed train. It flushes when there is no room for all.
func (t *Transmitter) enqueueMessages(slot []byte, p *lane.Peer, keys *session.Keypair, source, skip int) {
	if t.spray.on {
		keys, source = t.spray.assign(t, p, keys, source)
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
func (t *Transmitter) enqueueSingle(slot []byte, n int, p *lane.Peer, keys *session.Keypair, source int) *runMeta {
	padded := wire.PaddedLen(n, t.paddingLimit(p))
	msg := slot[:wire.DataOverhead+padded]
	if len(msg) > underlay.MaxDatagramRun {
		t.out.dropForPeer(p, drop.TXTooBig, 1)
		return nil
	}
	clear(slot[wire.DataHeaderLen+n : wire.DataHeaderLen+padded])
	if t.out.batch.pending.full() {
		t.out.flush()
	}
	ecn := packet.ECNOf(msg[wire.DataHeaderLen : wire.DataHeaderLen+n]).Outer()
	m := t.out.batch.pending.last(source)
	if m == nil || t.stream != nil || !m.accepts(p, keys, ecn, len(msg)) {
		m = t.out.batch.pending.open(source)
		m.peer, m.keys, m.ecn, m.segSize = p, keys, ecn, len(msg)
		t.reserve(m, 1)
	}
	t.out.batch.pending.add(m, msg)
	m.segments++
	m.bytes += len(msg)
	m.closed = len(msg) < m.segSize || m.streamed
	return m
}

// enqueueTrain appends the packets of a train, without the first skip, as one run, or more if they do not fit. It takes space in the arena,
// into which they are split when they are sealed. The train must stay where it is until then.
func (t *Transmitter) enqueueTrain(p *lane.Peer, keys *session.Keypair, source, skip int) {
	segments, segLen, mtu := t.train.Segments(), t.train.SegmentLen(), t.paddingLimit(p)
	stride := wire.DataOverhead + wire.PaddedLen(segLen, mtu)
	perRun := min(underlay.MaxRunSegments, underlay.MaxDatagramRun/stride)
	if perRun == 0 {
		t.out.dropForPeer(p, drop.TXTooBig, segments-skip)
		return
	}
	for first := skip; first < segments; first += perRun {
		count, last := min(perRun, segments-first), segLen
		if first+count == segments {
			last = t.train.LastLen()
		}
		l := session.NewLayout(count, segLen, last, mtu)
		dst := t.out.allocate(l.Size())
		m := t.out.batch.pending.open(source)
		m.peer, m.keys, m.segSize, m.segments, m.bytes = p, keys, stride, count, l.Size()
		m.inner, m.closed, m.layout, m.train, m.skip = (count-1)*segLen+last, true, l, t.train, first
		m.ecn = t.train.ECN().Outer() // all packets of a train have one
		t.reserve(m, count)
		if first == skip {
			m.trains = 1
		}
		t.out.batch.pending.add(m, dst)
	}
}

// reserve reserves the counters of a run now if it is sprayed: runs of several sources are sent in another order.
func (t *Transmitter) reserve(m *runMeta, messages int) {
	if t.stream != nil {
		m.counter, m.streamed = t.stream.stream.Reserve(messages)
	}
}
