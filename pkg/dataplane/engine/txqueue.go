// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/fqcodel"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// The transmit queue of a lane holds the trains for which a send buffer has no room. The lane goes on to send to all other send buffers.
const (
	txTarget   = 5 * time.Millisecond // CoDel's defaults (RFC 8289, section 4)
	txInterval = 100 * time.Millisecond
	// txFlows is the number of flows that may wait, as in Linux. A flow takes the first free place of txProbes.
	txFlows  = 1024
	txProbes = 32
	// txElements bounds the number of trains.
	txElements = 2048
	// maxTXQueue and minTXQueue bound the memory of a lane's queue in bytes. txQueueTotal is that of all lanes, if it allows minTXQueue
	// for each.
	maxTXQueue   = 16 << 20
	minTXQueue   = 2 << 20
	txQueueTotal = 64 << 20
	// txRetry is the pause in nanoseconds between two tries of full send buffers while the TUN queue has trains for others.
	txRetry = int64(time.Millisecond)
)

// sendBuffer identifies a send buffer of the port: that of a source and a send group.
type sendBuffer struct{ source, group int }

// txElement is one train that waits.
type txElement struct {
	peer     *Peer
	source   int
	train    []byte // with its virtio-net header
	buffer   *buffer
	segments int
	skip     int // packets at its start that were dropped
}

// waitingFlow identifies an inner flow with trains in the queue. Flows never share a place: one whose send buffer is full would stop the
// other.
type waitingFlow struct {
	peer *Peer
	hash uint32
}

// heldRun is a run that a full send buffer refused after it was sealed. It has its nonce counters already, so it must leave before the
// trains that wait for that send buffer.
type heldRun struct {
	run    underlay.Run
	parts  [1][]byte // of run
	meta   runMeta
	buffer *buffer
}

// txQueue is the transmit queue of one lane.
type txQueue struct {
	*fqcodel.Queue[txElement]               // nil until it is needed
	flows                     []waitingFlow // by place in Queue, valid while that has a backlog
	limit                     int
	buffers                   bufferSet
	held                      []*heldRun // in order of sending
	full                      []sendBuffer
	fds                       []int32        // to wait for
	runs                      []underlay.Run // of held, during a retry
	sent                      []*runMeta     // those of them that were sent
	retried                   int64          // time of the last retry
	marks                     int            // packets marked as congested
}

// active reports whether any send buffer is full, or trains wait.
func (q *txQueue) active() bool { return len(q.full) > 0 || q.Queue != nil && q.Len() > 0 }

// isFull reports whether a send buffer has refused a run since the last retry.
func (q *txQueue) isFull(b sendBuffer) bool { return slices.Contains(q.full, b) }

// place returns the place of a flow in the queue, and whether it has trains there; -1 if it has none and all places are taken.
func (q *txQueue) place(f waitingFlow) (at int, waits bool) {
	if q.Len() == 0 {
		return int(f.hash % txFlows), false
	}
	at = -1
	for i := range uint32(txProbes) {
		place := (f.hash + i) % txFlows
		switch {
		case q.Backlog(place) == 0:
			if at < 0 {
				at = int(place)
			}
		case q.flows[place] == f:
			return int(place), true
		}
	}
	return at, false
}

// blocks reports whether nothing may be sent to p by a send buffer now: it is full, or older messages to p are held, perhaps by that of the
// send group which p has just left.
func (q *txQueue) blocks(p *Peer, to sendBuffer) bool {
	return q.isFull(to) || slices.ContainsFunc(q.held, func(h *heldRun) bool { return h.meta.peer == p && h.run.Source == to.source })
}

// newTXQueue returns the FQ-CoDel queue of a transmitter.
func newTXQueue(t *transmitter) *fqcodel.Queue[txElement] {
	return fqcodel.New(fqcodel.Config[txElement]{
		Params: fqcodel.Params{Target: txTarget, Interval: txInterval, MTU: rxMTU},
		Flows:  txFlows, Quantum: rxFlowQuantum, Elements: txElements, Bytes: t.queue.limit,
		Signal:  t.signal,
		Blocked: func(e *txElement) bool { return t.queue.blocks(e.peer, sendBuffer{e.source, e.peer.sendGroup()}) },
	})
}

// read reads trains. While trains wait it also returns, with none, when a send buffer has room.
func (t *transmitter) read() (int, error) {
	q := &t.queue
	switch {
	case !q.active():
		return t.lane.queue.Read(t.bufs, t.sizes)
	case len(q.full) == 0 || q.Queue != nil && q.Ready():
		return t.lane.queue.TryRead(t.bufs, t.sizes), nil
	}
	n, err := t.lane.queue.ReadOr(t.bufs, t.sizes, q.fds)
	if n == 0 {
		q.retried = 0
	}
	return n, err
}

// wait moves the parsed train to p to the queue if its send buffer is full, or older trains of its flow are in the queue. It returns false
// if neither is so.
func (t *transmitter) wait(p *Peer, train []byte) bool {
	q := &t.queue
	if q.Queue == nil {
		q.Queue, q.flows = newTXQueue(t), make([]waitingFlow, txFlows)
	}
	source, f := t.chooseSource(p), waitingFlow{p, t.train.FlowHash()}
	place, waits := q.place(f)
	switch {
	case !waits && !q.blocks(p, sendBuffer{source, p.sendGroup()}):
		return false
	case place < 0:
		t.dropForPeer(p, drop.TXQueueFull, t.train.Segments())
		return true
	}
	for q.Full() || q.buffers.used >= q.limit {
		e, ok := q.PopFattest()
		if !ok {
			break
		}
		t.dropForPeer(e.peer, drop.TXQueueFull, e.segments-e.skip)
		q.buffers.release(e.buffer)
		q.buffers.recycle()
	}
	e := txElement{peer: p, source: source, buffer: q.buffers.take(len(train)), segments: t.train.Segments()}
	e.train = e.buffer.bytes[:copy(e.buffer.bytes, train)]
	q.flows[place] = f
	q.Push(uint32(place), e, len(train), t.now)
	p.SlowPath.SendBufferFull()
	return true
}

// signal signals congestion on the first packet of e: by a mark if it can carry one, otherwise by dropping it. A mark on the header of a
// train is one of all its packets. It is the queue's fqcodel.Config.Signal.
func (t *transmitter) signal(e *txElement) (empty bool) {
	if ip := e.train[offload.VnetHdrLen:]; packet.ECNOf(ip) != packet.NotECT {
		packet.SetCE(ip)
		t.queue.marks += e.segments - e.skip
		return false
	}
	t.dropForPeer(e.peer, drop.TXCongestion, 1)
	if e.skip++; e.skip < e.segments {
		return false
	}
	t.queue.buffers.release(e.buffer)
	return true
}

// sendQueued sends what waits for send buffers that have room now.
func (t *transmitter) sendQueued() {
	q := &t.queue
	if !q.active() {
		return
	}
	t.now = t.lane.engine.cfg.Clock()
	if len(q.full) > 0 && t.now-q.retried >= txRetry {
		t.retry()
	}
	if q.Queue == nil {
		return
	}
	for bytes, slot := 0, 0; bytes < quantum && slot < len(t.slots); slot++ {
		e, _, ok := q.Pop(t.now)
		if !ok {
			break
		}
		bytes += len(e.train)
		t.sendElement(&e, t.slots[slot])
		q.buffers.release(e.buffer)
	}
	t.flush()
	q.buffers.recycle()
	if q.Len() == 0 {
		clear(q.flows) // removed peers are not kept
	}
	if q.marks > 0 {
		t.lane.stats.txMarks.Add(uint64(q.marks))
		q.marks = 0
	}
}

// sendElement adds a train that has left the queue to the batch. slot is unused until the next flush.
func (t *transmitter) sendElement(e *txElement, slot []byte) {
	train := e.train
	if e.segments == 1 { // it is sealed in place
		train = slot[headroom : headroom+copy(slot[headroom:], e.train)]
	}
	if !t.parse(train) {
		return
	}
	keys := e.peer.Current.Load()
	switch {
	case e.peer.Endpoint.Load() == nil:
		t.dropForPeer(e.peer, drop.TXNoEndpoint, e.segments-e.skip)
	case !keys.Usable(t.now):
		t.stageTrain(e.peer, train)
	default:
		t.enqueue(slot, e.peer, keys, e.source, e.skip)
	}
}

// retry sends the held runs again, in order, and makes the queue try all flows.
func (t *transmitter) retry() {
	q := &t.queue
	q.retried = t.now
	q.full, q.fds = q.full[:0], q.fds[:0]
	q.runs = q.runs[:0]
	for _, h := range q.held {
		h.run.Group = h.meta.peer.sendGroup() // it may have left the group that is full
		q.runs = append(q.runs, h.run)
	}
	conn := t.lane.conn.Load()
	if conn != nil && len(q.runs) > 0 {
		(*conn).Send(q.runs)
	}
	kept := 0
	for i, h := range q.held {
		r := &q.runs[i]
		switch {
		case conn == nil:
			t.dropForPeer(h.meta.peer, drop.TXDown, h.run.Segments)
		case errors.Is(r.Err, underlay.ErrSendBufferFull):
			h.advance(r.Sent)
			q.noteFull(*conn, &h.run)
			q.held[kept] = h
			kept++
			continue
		case r.Err != nil:
			t.dropForPeer(h.meta.peer, sendDropReason(r.Err), h.run.Segments)
		default:
			q.sent = append(q.sent, &h.meta)
		}
		q.buffers.release(h.buffer)
	}
	t.countSent(q.sent)
	q.keepHeld(kept)
}

// keepHeld keeps the first n held runs, and makes the queue try all flows.
func (q *txQueue) keepHeld(n int) {
	clear(q.held[n:])
	clear(q.runs)
	clear(q.sent)
	q.held, q.sent = q.held[:n], q.sent[:0]
	q.buffers.recycle()
	if q.Queue != nil {
		q.Resume()
	}
}

// hold keeps a run that a full send buffer refused.
func (t *transmitter) hold(conn underlay.Lane, r *underlay.Run, m *runMeta) {
	q := &t.queue
	q.noteFull(conn, r)
	h := &heldRun{run: *r, meta: *m, buffer: q.buffers.take(m.bytes)}
	n := 0
	for _, part := range r.Parts {
		n += copy(h.buffer.bytes[n:], part)
	}
	h.parts[0] = h.buffer.bytes[:n]
	h.run.Parts = h.parts[:]
	h.advance(r.Sent)
	q.held = append(q.held, h)
	m.peer.SlowPath.SendBufferFull()
}

// noteFull records that the send buffer of r is full.
func (q *txQueue) noteFull(conn underlay.Lane, r *underlay.Run) {
	b := sendBuffer{r.Source, r.Group}
	if q.isFull(b) {
		return
	}
	q.full = append(q.full, b)
	q.fds = append(q.fds, int32(conn.SendFD(r)))
}

// advance takes the first n datagrams, which were sent, off the run.
func (h *heldRun) advance(n int) {
	h.parts[0] = h.parts[0][n*h.run.SegSize:]
	h.run.Segments -= n
	h.run.Sent = 0
}

// holdFull holds the runs of b whose send buffers are known to be full.
func (t *transmitter) holdFull(conn underlay.Lane, b *txBatch) {
	if len(t.queue.full) == 0 {
		return
	}
	kept := 0
	for i := range b.runs {
		if t.queue.isFull(sendBuffer{b.runs[i].Source, b.runs[i].Group}) {
			b.runs[i].Sent = 0
			t.hold(conn, &b.runs[i], b.meta[i])
			continue
		}
		b.runs[kept], b.meta[kept] = b.runs[i], b.meta[i]
		kept++
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}
