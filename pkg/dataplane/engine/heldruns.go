// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// heldRun is a run that a full send buffer refused after it was sealed. It has its nonce counters already, so it must leave before the
// trains that wait for that send buffer.
type heldRun struct {
	run    underlay.Run
	parts  [1][]byte // of run
	meta   runMeta
	buffer *buffer
	conn   *underlay.Lane // that has the run's source
}

// blocks reports whether no run to p may be passed to a send buffer now: the buffer is full, or older messages to p are held, perhaps for the
// buffer of the send group that p has just left.
func (q *txQueue) blocks(p *Peer, to sendBuffer) bool {
	return q.isFull(to) || slices.ContainsFunc(q.held, func(h *heldRun) bool { return h.meta.peer == p && h.run.Source == to.source })
}

// noteGroup reads the send group of p once for the next call of Send, so that all runs to p in it have the same group. Otherwise later messages
// could overtake those that a full send buffer of the former group refuses.
func (t *transmitter) noteGroup(p *Peer) { p.trafficOf(t.lane.index).group = p.sendGroup() }

// setGroups sets the send groups of the runs of b, and lets those be fragmented that must be sent although they exceed the path MTU.
func (t *transmitter) setGroups(b *txBatch) {
	for _, m := range b.meta {
		t.noteGroup(m.peer)
	}
	for i, m := range b.meta {
		b.runs[i].Group = m.peer.trafficOf(t.lane.index).group
		b.runs[i].MayFragment = m.segSize > m.peer.pathLimit()+wire.DataOverhead
	}
}

// retry sends the held runs again, in order, and makes the queue try all flows.
func (t *transmitter) retry() {
	q := &t.queue
	q.retried, q.waited, q.spurious = t.now, false, q.waited && len(q.held) > 0
	q.full, q.fds = q.full[:0], q.fds[:0]
	conn := t.lane.conn.Load()
	t.resend(conn)
	kept := 0
	for i, h := range q.held {
		r := &q.runs[i]
		switch {
		case conn == nil:
			t.dropForPeer(h.meta.peer, drop.TXDown, h.run.Segments)
		case errors.Is(r.Err, underlay.ErrSendBufferFull):
			h.run.Group = r.Group
			t.advance(h, r.Sent)
			q.spurious = q.spurious && r.Sent == 0
			q.noteFull(conn, r)
			q.held[kept] = h
			kept++
			continue
		case r.Err != nil:
			t.advance(h, r.Sent)
			t.dropUnsent(&h.meta, r.Err, h.run.Segments)
		default:
			q.spurious, q.left[h.run.Source] = false, t.now
			q.sent = append(q.sent, &h.meta)
		}
		q.buffers.release(h.buffer)
	}
	t.countSent(q.sent)
	q.keepHeld(kept)
	t.noteOldest()
}

// resend passes the held runs to conn, in q.runs.
func (t *transmitter) resend(conn *underlay.Lane) {
	q := &t.queue
	q.runs = q.runs[:0]
	for _, h := range q.held {
		t.noteGroup(h.meta.peer)
	}
	for _, h := range q.held {
		h.run.Source, h.conn = sourceOn(conn, h.conn, h.run.Source), conn
		if to := h.meta.peer.Endpoint.Load(); to != nil {
			h.run.To = to // the peer may have roamed since
		}
		q.runs = append(q.runs, h.run)
		q.runs[len(q.runs)-1].Group = h.meta.peer.trafficOf(t.lane.index).group
	}
	if conn != nil && len(q.runs) > 0 {
		(*conn).Send(q.runs)
	}
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
func (t *transmitter) hold(conn *underlay.Lane, r *underlay.Run, m *runMeta) {
	q := &t.queue
	q.noteFull(conn, r)
	h := &heldRun{run: *r, meta: *m, conn: conn, buffer: q.buffers.take(m.bytes)}
	h.meta.train = offload.Train{} // the next train is read into its buffer
	n := 0
	for _, part := range r.Parts {
		n += copy(h.buffer.bytes[n:], part)
	}
	h.parts[0] = h.buffer.bytes[:n]
	h.run.Parts = h.parts[:]
	t.advance(h, r.Sent)
	q.held = append(q.held, h)
	t.noteOldest()
	m.peer.SlowPath.SendBufferFull()
}

// noteOldest publishes that another run is the oldest that is held, that a part of it was sent, or that none is held.
func (t *transmitter) noteOldest() {
	q, left := &t.queue, 0
	var h *heldRun
	if len(q.held) > 0 {
		h = q.held[0]
		left = h.run.Segments
	}
	switch p := &t.lane.stats.held; {
	case h == nil:
		p.rest()
	case h != q.oldest || left != q.oldestLeft:
		p.work()
	}
	q.oldest, q.oldestLeft = h, left
}

// noteFull records that the send buffer of r is full.
func (q *txQueue) noteFull(conn *underlay.Lane, r *underlay.Run) {
	b := sendBuffer{r.Source, r.Group}
	if q.isFull(b) {
		return
	}
	q.conn = conn
	q.full = append(q.full, b)
	q.fds = append(q.fds, int32((*conn).SendFD(r)))
}

// part returns the first n datagrams of a run, which were sent. All but the last of the run have the same size.
func (m *runMeta) part(n int) runMeta {
	sent := *m
	sent.segments, sent.bytes, sent.inner, sent.trains = n, n*m.segSize, m.inner*n/m.segments, 0
	return sent
}

// advance takes the first n datagrams, which were sent, off the run, and counts them.
func (t *transmitter) advance(h *heldRun, n int) {
	if n == 0 {
		return
	}
	sent := h.meta.part(n)
	t.countSent([]*runMeta{&sent})
	h.meta.segments, h.meta.bytes, h.meta.inner = h.meta.segments-n, h.meta.bytes-sent.bytes, h.meta.inner-sent.inner
	h.parts[0] = h.parts[0][sent.bytes:]
	h.run.Segments -= n
	h.run.Sent = 0
}

// holdFull holds the runs of b for whose peers a send buffer is known to be full.
func (t *transmitter) holdFull(conn *underlay.Lane, b *txBatch) {
	if len(t.queue.full) == 0 {
		return
	}
	kept := 0
	for i := range b.runs {
		r := &b.runs[i]
		if t.queue.blocks(b.meta[i].peer, sendBuffer{r.Source, r.Group}) {
			r.Sent = 0
			t.hold(conn, r, b.meta[i])
			continue
		}
		b.runs[kept], b.meta[kept] = b.runs[i], b.meta[i]
		kept++
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}
