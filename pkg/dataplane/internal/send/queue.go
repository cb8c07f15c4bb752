// SPDX-License-Identifier: Apache-2.0

package send

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/fqcodel"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// The transmit queue of a lane holds the trains for which a send buffer has no room. The lane goes on to send to all other send buffers.
const (
	// txFlows is the number of flows that may wait, as in Linux. A flow takes the first free place
	// of txProbes, or takes another flow's place.
	txFlows  = 1024
	txProbes = 32
	// txElements bounds the number of trains.
	txElements = 2048
	// maxTXQueue and minTXQueue bound the memory of a lane's queue in bytes. txQueueTotal bounds
	// the queues of all lanes together, if it allows minTXQueue for each.
	maxTXQueue   = 16 << 20
	minTXQueue   = 2 << 20
	txQueueTotal = 64 << 20
	// txRetry is the pause in nanoseconds between two tries of full send buffers while the TUN queue has trains for others.
	txRetry = int64(time.Millisecond)
)

// txElement is one train that waits.
type txElement struct {
	peer     *lane.Peer
	hash     uint32 // of its flow
	source   int
	conn     *underlay.Lane // that has the source
	train    []byte         // with its virtio-net header
	buffer   *lane.Buffer
	segments int
	skip     int // packets at its start that were dropped
}

// waitingFlow identifies an inner flow with trains in the queue. Flows never share a place: a
// flow with a full send buffer would stop the other.
type waitingFlow struct {
	peer *lane.Peer
	hash uint32
}

// txQueue is the transmit queue of one lane.
type txQueue struct {
	*fqcodel.Queue[txElement]               // nil until it is needed
	flows                     []waitingFlow // by place in Queue, valid while that has a backlog
	limit                     int
	buffers                   lane.BufferSet
}

// active reports whether any send buffer is full, or trains wait.
func (t *Transmitter) active() bool {
	return len(t.out.held.full) > 0 || t.queue.Queue != nil && t.queue.Len() > 0
}

// delays reports whether older packets of a flow wait for the send buffers of a source, or left them less than a flowlet gap ago. Then the
// flow has not paused, however long ago its last packet was read.
func (t *Transmitter) delays(f waitingFlow, source int) bool {
	q, h := &t.queue, &t.out.held
	switch {
	case h.conn == nil: // no send buffer was ever full
		return false
	case t.out.now-h.left[source] < int64(spread.DefaultGap), h.blocks(f.peer, sendBuffer{source, f.peer.Group()}):
		return true
	case q.Queue == nil:
		return false
	}
	_, waits := q.place(f)
	return waits
}

// place returns the place of a flow in the queue, and whether it has trains there. If all places
// that it may take are taken, another flow has to make room, and place returns its place. It is
// the flow with most bytes, among the same peer's flows if there are any.
func (q *txQueue) place(f waitingFlow) (at uint32, waits bool) {
	at = f.hash % txFlows
	if q.Len() == 0 {
		return at, false
	}
	for i := range uint32(txProbes) {
		place := (f.hash + i) % txFlows
		if q.Backlog(place) > 0 && q.flows[place] == f {
			return place, true
		}
		if q.better(place, at, f.peer) {
			at = place
		}
	}
	return at, false
}

// better reports whether a flow to p should take place a rather than b: a free place, or else the
// place whose loss is fairest.
func (q *txQueue) better(a, b uint32, p *lane.Peer) bool {
	backlogA, backlogB := q.Backlog(a), q.Backlog(b)
	switch ownA, ownB := q.flows[a].peer == p, q.flows[b].peer == p; {
	case backlogA == 0 || backlogB == 0:
		return backlogB > 0
	case ownA != ownB:
		return ownA
	}
	return backlogA > backlogB
}

// clearPlace drops the trains of the flow at a place.
func (t *Transmitter) clearPlace(place uint32) {
	for {
		e, ok := t.queue.PopFlow(place)
		if !ok {
			return
		}
		t.dropElement(&e)
	}
}

// dropElement drops a train for which the queue has no room.
func (t *Transmitter) dropElement(e *txElement) {
	t.out.dropForPeer(e.peer, drop.TXQueueFull, e.segments-e.skip)
	t.noteQueued(e.peer, e.source, e.train, 0, e.segments-e.skip)
	t.queue.buffers.Release(e.buffer)
	t.queue.buffers.Recycle()
}

// dropRead counts a train that was read, and for which there is no room.
func (t *Transmitter) dropRead(train []byte) {
	if !t.parse(train) {
		return
	}
	p := t.routes.Lookup(&t.out.lane.Shared.Routes, t.train.Destination())
	if p == nil {
		t.out.drop(drop.TXQueueFull, t.train.Segments())
		return
	}
	t.out.dropForPeer(p, drop.TXQueueFull, t.train.Segments())
	t.noteRefused(p, 0, 0)
}

// newTXQueue returns the FQ-CoDel queue of a transmitter.
func newTXQueue(t *Transmitter) *fqcodel.Queue[txElement] {
	return fqcodel.New(fqcodel.Config[txElement]{
		Params: lane.QueueParams,
		Flows:  txFlows, Quantum: lane.FlowQuantum, Elements: txElements, Bytes: t.queue.limit,
		Signal:  t.signal,
		Blocked: func(e *txElement) bool { return t.out.held.blocks(e.peer, sendBuffer{e.source, e.peer.Group()}) },
	})
}

// read reads trains. While trains wait it also returns, with none, when a send buffer has room.
func (t *Transmitter) read() (int, error) {
	q, h := &t.queue, &t.out.held
	switch {
	case !t.active():
		return t.reader.read(t.out.batch)
	case len(h.full) == 0 || q.Queue != nil && q.Ready():
		return t.reader.tryRead(t.out.batch), nil
	case h.spurious:
		h.spurious, h.retried = false, 0
		time.Sleep(time.Duration(txRetry))
		return t.reader.tryRead(t.out.batch), nil
	case h.conn != t.out.lane.Conn.Load() || !(*h.conn).BeginWait(): // the port was closed
		h.retried = 0
		return t.reader.tryRead(t.out.batch), nil
	}
	n, err := t.reader.readOr(t.out.batch, h.fds)
	(*h.conn).EndWait()
	if n == 0 {
		h.retried, h.waited = 0, true
	}
	return n, err
}

// queueIfFull queues the parsed train to p if its send buffer is full, or older trains of its
// flow are in the queue. It returns false if neither is so.
func (t *Transmitter) queueIfFull(p *lane.Peer, source int, train []byte) bool {
	q := &t.queue
	if q.Queue == nil {
		q.Queue, q.flows = newTXQueue(t), make([]waitingFlow, txFlows)
	}
	f := waitingFlow{p, t.flowHash()}
	place, waits := q.place(f)
	if !waits {
		if !t.out.held.blocks(p, sendBuffer{source, p.Group()}) {
			return false
		}
		t.clearPlace(place)
	}
	for q.Full() || q.buffers.Used >= q.limit {
		e, ok := q.PopFattest()
		if !ok {
			break
		}
		t.dropElement(&e)
	}
	e := txElement{peer: p, hash: t.flowHash(), source: source, conn: t.out.lane.Conn.Load(), buffer: q.buffers.Take(len(train)), segments: t.train.Segments()}
	e.train = e.buffer.Bytes[:copy(e.buffer.Bytes, train)]
	q.flows[place] = f
	q.Push(place, e, len(train), t.out.now)
	p.SlowPath.SendBufferFull()
	return true
}

// signal signals congestion on e. It is the queue's fqcodel.Config.Signal.
func (t *Transmitter) signal(e *txElement) (empty bool) {
	if e.skip += t.signalCongestion(e.peer, e.source, e.train, e.segments-e.skip); e.skip < e.segments {
		return false
	}
	t.queue.buffers.Release(e.buffer)
	return true
}

// signalCongestion signals congestion on the first packet of a train. It marks the packet if
// possible. Otherwise it counts the packet as dropped and returns 1. A mark in the header of a
// train marks all its packets. The train has so many packets left.
func (t *Transmitter) signalCongestion(p *lane.Peer, source int, train []byte, packets int) (dropped int) {
	if ip := train[offload.VnetHdrLen:]; packet.ECNOf(ip) != packet.NotECT {
		packet.SetCE(ip)
		t.out.lane.Stats.TxMarks.Add(uint64(packets))
		t.noteQueued(p, source, train, packets, 0)
		return 0
	}
	t.out.dropForPeer(p, drop.TXCongestion, 1)
	t.noteQueued(p, source, train, 0, 1)
	return 1
}

// retryDue reports whether sendQueued has been due for some time.
func (t *Transmitter) retryDue() bool { return t.active() && t.out.now-t.out.held.retried >= txRetry }

// drainRetries is the number of retries, txRetry apart, of a lane that ends and has trains that wait.
const drainRetries = 100

// drain sends what waits, and drops what finds no room in time: the interface goes, or a successor reads it from now on.
func (t *Transmitter) drain() {
	q, h := &t.queue, &t.out.held
	for retries := 0; t.active() && retries < drainRetries; {
		h.retried = 0
		if t.sendQueued(); len(h.full) > 0 {
			retries++
			time.Sleep(time.Duration(txRetry))
		}
	}
	t.out.dropHeld()
	for q.Queue != nil {
		e, ok := q.PopFattest()
		if !ok {
			break
		}
		t.out.dropForPeer(e.peer, drop.TXDown, e.segments-e.skip)
	}
}

// sendQueued sends what waits for send buffers that have room now.
func (t *Transmitter) sendQueued() {
	q := &t.queue
	if !t.active() {
		return
	}
	t.out.now = t.out.lane.Shared.Clock()
	if h := &t.out.held; len(h.full) > 0 && t.out.now-h.retried >= txRetry {
		t.out.retry()
		if q.Queue != nil {
			q.Resume() // tries all flows
		}
	}
	if q.Queue == nil {
		return
	}
	t.out.batch.grow()
	for bytes, slot := 0, 0; bytes < lane.Quantum && slot < len(t.out.batch.slots); slot++ {
		e, _, ok := q.Pop(t.out.now)
		if !ok {
			break
		}
		bytes += len(e.train)
		t.sendElement(&e, t.out.batch.slots[slot])
		q.buffers.Release(e.buffer)
	}
	t.out.flush()
	q.buffers.Recycle()
	if q.Len() == 0 {
		clear(q.flows) // removed peers are not kept
	}
}

// sendElement adds a train that has left the queue to the batch. slot is unused until the next flush.
func (t *Transmitter) sendElement(e *txElement, slot []byte) {
	t.hash = e.hash
	train := e.train
	if e.segments == 1 { // it is sealed in place
		train = slot[lane.Headroom : lane.Headroom+copy(slot[lane.Headroom:], e.train)]
	}
	if !t.parse(train) {
		return
	}
	if e.peer.Endpoint.Load() == nil {
		t.out.dropForPeer(e.peer, drop.TXNoEndpoint, e.segments-e.skip)
		return
	}
	keys := e.peer.Current.Load()
	switch {
	case keys.Usable(t.out.now):
	case e.skip == 0:
		keys = t.keysOrStage(e.peer, train, e.segments)
	default:
		keys = t.stageRest(e)
	}
	if keys != nil {
		t.out.held.left[e.source] = t.out.now
		t.enqueue(slot, e.peer, keys, sourceOn(t.out.lane.Conn.Load(), e.conn, e.source), e.skip)
	}
}

// stageRest stages the packets of e that were not dropped, one by one. If there is a session by
// then, it returns the key pair to send the others with, and e is without the staged packets.
func (t *Transmitter) stageRest(e *txElement) *session.Keypair {
	stride := offload.VnetHdrLen + t.train.SegmentLen()
	rest := make([]byte, (e.segments-e.skip)*stride) // with virtio-net headers of zero: nothing is left to do to the packets
	t.train.Split(rest, stride, offload.VnetHdrLen, e.skip, e.segments-e.skip)
	for ; e.skip < e.segments; e.skip++ {
		n := t.train.SegmentLen()
		if e.skip == e.segments-1 {
			n = t.train.LastLen()
		}
		if keys := t.keysOrStage(e.peer, rest[:offload.VnetHdrLen+n], 1); keys != nil {
			return keys
		}
		rest = rest[min(stride, len(rest)):]
	}
	return nil
}
