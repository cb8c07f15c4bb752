// SPDX-License-Identifier: Apache-2.0

package send

import (
	"errors"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
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
	buffer *lane.Buffer
	conn   *underlay.Lane // that has the run's source
}

// sendBuffer identifies a send buffer of the port. Each pair of a source and a send group has
// one.
type sendBuffer struct{ source, group int }

// heldRuns are the held runs of a lane, at most a batch for each full send buffer.
type heldRuns struct {
	list       []*heldRun // in order of sending
	buffers    lane.BufferSet
	oldest     *heldRun // list[0] when noteOldest was last called
	oldestLeft int      // its messages
	full       []sendBuffer
	conn       *underlay.Lane                 // whose send buffers they are
	fds        []int32                        // to wait for
	runs       []underlay.Run                 // of list, during a retry
	sent       []*runMeta                     // the sent ones among runs
	retried    int64                          // time of the last retry
	waited     bool                           // since the last retry, for room
	spurious   bool                           // the kernel called a send buffer writable and still refused all runs, for example because IPsec does not permit the route yet
	left       [underlay.MaxSources + 1]int64 // by source: when a train that had waited for it last left
}

// isFull reports whether a send buffer has refused a run since the last retry.
func (h *heldRuns) isFull(b sendBuffer) bool { return slices.Contains(h.full, b) }

// blocks reports whether no run to p may be passed to a send buffer now. Either the buffer is
// full, or older messages to p are held. These may wait for the buffer of the send group that p
// has just left.
func (h *heldRuns) blocks(p *lane.Peer, to sendBuffer) bool {
	return h.isFull(to) || slices.ContainsFunc(h.list, func(r *heldRun) bool { return r.meta.peer == p && r.run.Source == to.source })
}

// noteGroup reads the send group of p once for the next call of Send. All runs to p in the call
// have this group. Otherwise later messages could overtake messages that a full send buffer of
// the former group refuses.
func (s *sender) noteGroup(p *lane.Peer) { p.TrafficOf(s.lane.Index).Group = p.Group() }

// setGroups sets the send groups of the runs of b, and lets those be fragmented that must be sent although they exceed the path MTU.
func (s *sender) setGroups(b *txBatch) {
	for _, m := range b.meta {
		s.noteGroup(m.peer)
	}
	for i, m := range b.meta {
		b.runs[i].Group = m.peer.TrafficOf(s.lane.Index).Group
		b.runs[i].MayFragment = m.segSize > m.peer.PathLimit()+wire.DataOverhead
	}
}

// retry sends the held runs again, in order.
func (s *sender) retry() {
	h := &s.held
	h.retried, h.waited, h.spurious = s.now, false, h.waited && len(h.list) > 0
	h.full, h.fds = h.full[:0], h.fds[:0]
	conn := s.lane.Conn.Load()
	s.resend(conn)
	kept := 0
	for i, held := range h.list {
		r := &h.runs[i]
		switch {
		case conn == nil:
			s.dropForPeer(held.meta.peer, drop.TXDown, held.run.Segments)
		case errors.Is(r.Err, underlay.ErrSendBufferFull):
			held.run.Group = r.Group
			s.advance(held, r.Sent)
			h.spurious = h.spurious && r.Sent == 0
			h.noteFull(conn, r)
			h.list[kept] = held
			kept++
			continue
		case r.Err != nil:
			s.advance(held, r.Sent)
			s.dropUnsent(&held.meta, r.Err, held.run.Segments)
		default:
			h.spurious, h.left[held.run.Source] = false, s.now
			h.sent = append(h.sent, &held.meta)
		}
		h.buffers.Release(held.buffer)
	}
	s.countSent(h.sent)
	h.keep(kept)
	s.noteOldest()
}

// resend passes the held runs to conn, in s.held.runs.
func (s *sender) resend(conn *underlay.Lane) {
	h := &s.held
	h.runs = h.runs[:0]
	for _, held := range h.list {
		s.noteGroup(held.meta.peer)
	}
	for _, held := range h.list {
		held.run.Source, held.conn = sourceOn(conn, held.conn, held.run.Source), conn
		if to := held.meta.peer.Endpoint.Load(); to != nil {
			held.run.To = to // the peer may have roamed since
		}
		h.runs = append(h.runs, held.run)
		h.runs[len(h.runs)-1].Group = held.meta.peer.TrafficOf(s.lane.Index).Group
	}
	if conn != nil && len(h.runs) > 0 {
		(*conn).Send(h.runs)
	}
}

// sourceOn returns the source from which a train leaves by conn, after it has waited for a source
// of waited. It is 0 if these belong to different ports, which have different sources.
func sourceOn(conn, waited *underlay.Lane, source int) int {
	if conn != waited {
		return 0
	}
	return source
}

// keep keeps the first n runs.
func (h *heldRuns) keep(n int) {
	clear(h.list[n:])
	clear(h.runs)
	clear(h.sent)
	h.list, h.sent = h.list[:n], h.sent[:0]
	h.buffers.Recycle()
}

// dropHeld drops the held runs, for which the lane cannot wait any longer.
func (s *sender) dropHeld() {
	for _, held := range s.held.list {
		s.dropForPeer(held.meta.peer, drop.TXDown, held.run.Segments)
	}
	s.held.keep(0)
	s.noteOldest()
}

// hold keeps a run that a full send buffer refused.
func (s *sender) hold(conn *underlay.Lane, r *underlay.Run, m *runMeta) {
	h := &s.held
	h.noteFull(conn, r)
	held := &heldRun{run: *r, meta: *m, conn: conn, buffer: h.buffers.Take(m.bytes)}
	held.meta.train = offload.Train{} // the next train is read into its buffer
	n := 0
	for _, part := range r.Parts {
		n += copy(held.buffer.Bytes[n:], part)
	}
	held.parts[0] = held.buffer.Bytes[:n]
	held.run.Parts = held.parts[:]
	s.advance(held, r.Sent)
	h.list = append(h.list, held)
	s.noteOldest()
	m.peer.SlowPath.SendBufferFull()
}

// noteOldest publishes that another run is the oldest that is held, that a part of it was sent, or that none is held.
func (s *sender) noteOldest() {
	h, left := &s.held, 0
	var oldest *heldRun
	if len(h.list) > 0 {
		oldest = h.list[0]
		left = oldest.run.Segments
	}
	switch p := &s.lane.Stats.Held; {
	case oldest == nil:
		p.Rest()
	case oldest != h.oldest || left != h.oldestLeft:
		p.Work()
	}
	h.oldest, h.oldestLeft = oldest, left
}

// noteFull records that the send buffer of r is full.
func (h *heldRuns) noteFull(conn *underlay.Lane, r *underlay.Run) {
	b := sendBuffer{r.Source, r.Group}
	if h.isFull(b) {
		return
	}
	h.conn = conn
	h.full = append(h.full, b)
	h.fds = append(h.fds, int32((*conn).SendFD(r)))
}

// part returns the first n datagrams of a run, which were sent. All but the last of the run have the same size.
func (m *runMeta) part(n int) runMeta {
	sent := *m
	sent.segments, sent.bytes, sent.inner, sent.trains = n, n*m.segSize, m.inner*n/m.segments, 0
	return sent
}

// advance takes the first n datagrams, which were sent, off the run, and counts them.
func (s *sender) advance(h *heldRun, n int) {
	if n == 0 {
		return
	}
	sent := h.meta.part(n)
	s.countSent([]*runMeta{&sent})
	h.meta.segments, h.meta.bytes, h.meta.inner = h.meta.segments-n, h.meta.bytes-sent.bytes, h.meta.inner-sent.inner
	h.parts[0] = h.parts[0][sent.bytes:]
	h.run.Segments -= n
	h.run.Sent = 0
}

// holdFull holds the runs of b for whose peers a send buffer is known to be full.
func (s *sender) holdFull(conn *underlay.Lane, b *txBatch) {
	if len(s.held.full) == 0 {
		return
	}
	kept := 0
	for i := range b.runs {
		r := &b.runs[i]
		if s.held.blocks(b.meta[i].peer, sendBuffer{r.Source, r.Group}) {
			r.Sent = 0
			s.hold(conn, r, b.meta[i])
			continue
		}
		b.runs[kept], b.meta[kept] = b.runs[i], b.meta[i]
		kept++
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}
