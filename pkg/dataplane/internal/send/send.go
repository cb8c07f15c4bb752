// SPDX-License-Identifier: Apache-2.0

package send

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// sender seals and sends the batches of a transmitter.
type sender struct {
	lane    *lane.Lane
	drops   *drop.Counters
	batch   *txBatch   // that is being filled
	spares  []*txBatch // unused batches: neither being filled nor in the job ring
	jobs    *workpool.JobRing
	scratch session.Scratch
	now     int64
	flushes uint64 // number of the next flush, from 1
	held    heldRuns
	holds   bool // runs that a full send buffer refuses are kept, not dropped
}

// newSender returns a sender with batches of up to n trains.
func newSender(l *lane.Lane, n int) sender {
	return sender{
		lane: l, drops: &l.Stats.Drops, batch: newTxBatch(n), jobs: l.SealJobs, flushes: 1,
		held: heldRuns{buffers: lane.BufferSet{Memory: &l.Shared.Memory}}, holds: true,
	}
}

// A lane with a backlog reads ahead. It submits its batches as jobs to its job ring, and workers
// seal them. The lane sends them in the order in which it read them. Without a backlog, or while
// the job ring is unavailable, each batch is sealed and sent before the next read.

// flush seals and sends all batches in order.
func (s *sender) flush() {
	s.flushes++
	if s.jobs.Pending() == 0 {
		if !s.batch.empty() {
			s.prepare(s.batch)
			s.batch.Run(&s.scratch) // seals it
			s.send(s.batch)
		}
		return
	}
	if !s.batch.empty() {
		s.submit(s.batch)
	}
	for s.jobs.Pending() > 0 {
		s.collect()
	}
}

// spareBatch returns an unused batch. All batches together are at most as many as the job ring holds, the current one and the next.
func (s *sender) spareBatch() *txBatch {
	last := len(s.spares) - 1
	if last < 0 {
		s.lane.Shared.Memory.Note()
		return newTxBatch(Slots)
	}
	b := s.spares[last] // the most recently used, perhaps still in the cache
	s.spares = s.spares[:last]
	return b
}

// submit submits a batch as a job. If the ring is full, it first waits for the oldest job and sends its batch.
func (s *sender) submit(b *txBatch) {
	s.prepare(b)
	if s.jobs.Full() {
		s.collect()
	}
	s.jobs.Submit(b)
}

// sendSealed sends the oldest batches, up to the first that is not sealed yet.
func (s *sender) sendSealed() {
	for s.jobs.OldestDone() {
		s.collect()
	}
}

// collect waits for the oldest batch and sends it.
func (s *sender) collect() {
	b := s.jobs.Collect(&s.scratch).(*txBatch)
	s.send(b)
	if b != s.batch { // flush submits the current batch, which stays the current one
		s.spares = append(s.spares, b)
	}
}

// prepare builds the runs of b and reserves their nonce counters, one block per span, in send order. It drops spans whose
// session has no counters left.
func (s *sender) prepare(b *txBatch) {
	b.assemble()
	kept := 0
	for i := 0; i < len(b.runs); {
		g := b.spanAt(i)
		i += g.runs
		m := b.meta[g.first]
		var ok bool
		if m.streamed {
			g.counter = m.counter
		} else if g.counter, ok = m.keys.Reserve(g.messages); !ok {
			s.dropUnsealable(m, g.messages, drop.TXExhausted)
			continue
		}
		kept += b.moveSpan(&g, kept)
		b.spans = append(b.spans, g)
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}

// moveSpan moves the runs of g to index to, and returns their number.
func (b *txBatch) moveSpan(g *sealSpan, to int) int {
	copy(b.runs[to:], b.runs[g.first:g.first+g.runs])
	copy(b.meta[to:], b.meta[g.first:g.first+g.runs])
	g.first = to
	return g.runs
}

// dropUnsealable drops the messages of a span that begins with m, and requests a rekey: its session has ended.
func (s *sender) dropUnsealable(m *runMeta, messages int, why drop.Reason) {
	s.dropForPeer(m.peer, why, messages)
	m.peer.SlowPath.Rekey()
}

// dropForPeer counts n messages or packets to p as dropped.
func (s *sender) dropForPeer(p *lane.Peer, why drop.Reason, n int) {
	s.drop(why, n)
	p.TrafficOf(s.lane.Index).TxDrops.Add(uint64(n))
}

// send sends the sealed runs of b, counts them, and empties b.
func (s *sender) send(b *txBatch) {
	s.dropUnsealed(b)
	s.noteSent(b)
	if conn := s.lane.Conn.Load(); conn == nil {
		s.dropRuns(b, drop.TXDown)
	} else {
		s.setGroups(b)
		s.holdFull(conn, b)
		if len(b.runs) > 0 && (*conn).Send(b.runs) > 0 {
			s.handleFailed(conn, b)
		}
	}
	s.countSent(b.meta)
	b.reset()
}

// dropUnsealed drops the spans whose session ended before they were sealed.
func (s *sender) dropUnsealed(b *txBatch) {
	kept := 0
	for i := range b.spans {
		if g := &b.spans[i]; g.sealed {
			kept += b.moveSpan(g, kept)
		} else {
			s.dropUnsealable(b.meta[g.first], g.messages, drop.TXNoSession)
		}
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}

// noteSent updates the peers' timers before sending. An answer may arrive before Send returns, and data would otherwise seem
// unanswered.
func (s *sender) noteSent(b *txBatch) {
	for _, m := range b.meta {
		m.noteSent(s.now)
	}
}

// countSent counts the runs that were sent.
func (s *sender) countSent(runs []*runMeta) {
	packets, bytes, trains, sprayed := 0, 0, 0, 0
	var sizes lane.RunSizes
	for _, m := range runs {
		packets += m.segments
		sizes.Note(m.segments)
		bytes += m.inner
		trains += m.trains
		if m.streamed {
			sprayed += m.segments
		}
		to := m.peer.TrafficOf(s.lane.Index)
		to.Tx.Add(uint64(m.bytes))
		to.TxPackets.Add(uint64(m.segments))
		if m.source > 0 { // afterwards: no source has more messages than all together
			m.peer.CountSource(m.source, m.segments)
		}
	}
	s.lane.Stats.Tx.Add(packets, bytes, trains, len(runs))
	s.lane.Stats.Tx.Sizes.Publish(&sizes)
	if sprayed > 0 {
		s.lane.Stats.Sprayed.Add(uint64(sprayed))
	}
}

// noteSent updates the peer's timers for the messages of a run.
func (m *runMeta) noteSent(now int64) {
	if m.isControl() {
		m.peer.Activity.SentControl(now)
	} else {
		m.peer.Activity.Sent(now, m.inner > 0)
	}
	if lane.RekeyDue(m.keys, now, false) && (!m.streamed || m.peer.Current.Load() == m.keys) { // a stream may end in the last session
		m.peer.SlowPath.Rekey()
	}
}

// handleFailed removes the runs that Send could not send. It holds a run for which a send buffer
// has no room, and counts any other run as dropped.
func (s *sender) handleFailed(conn *underlay.Lane, b *txBatch) {
	kept := 0
	for i := range b.runs {
		r, m := &b.runs[i], b.meta[i]
		switch {
		case r.Err == nil:
			b.runs[kept], b.meta[kept] = b.runs[i], b.meta[i]
			kept++
		case s.holds && errors.Is(r.Err, underlay.ErrSendBufferFull):
			s.hold(conn, r, m)
		default:
			if r.Sent > 0 {
				sent := m.part(r.Sent)
				s.countSent([]*runMeta{&sent})
			}
			s.dropUnsent(m, r.Err, r.Segments-r.Sent)
		}
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}

// dropUnsent counts messages of a run that Send could not send, and reports their size if that is the reason.
func (s *sender) dropUnsent(m *runMeta, err error, messages int) {
	s.dropForPeer(m.peer, sendDropReason(err), messages)
	if errors.Is(err, underlay.ErrTooBig) {
		m.peer.SlowPath.TooBig(m.segSize)
	}
}

// sendDropReason returns the drop reason for an error of Send.
func sendDropReason(err error) drop.Reason {
	switch {
	case errors.Is(err, underlay.ErrTooBig):
		return drop.TXTooBig
	case errors.Is(err, underlay.ErrSendBufferFull):
		return drop.TXSendBuffer
	case errors.Is(err, underlay.ErrLoop):
		return drop.TXLoop
	}
	return drop.TXSendError
}

func (s *sender) dropRuns(b *txBatch, r drop.Reason) {
	for i := range b.runs {
		s.dropForPeer(b.meta[i].peer, r, b.runs[i].Segments)
	}
	b.runs, b.meta = b.runs[:0], b.meta[:0]
}

func (s *sender) drop(r drop.Reason, n int) { s.drops.Add(r, n) }

// allocate returns n bytes of the arena, n <= arenaLen. It sends the batch first if the arena is full.
func (s *sender) allocate(n int) []byte {
	if s.batch.arenaUsed+n > len(s.batch.arena) || s.batch.pending.full() {
		s.flush()
	}
	b := s.batch.arena[s.batch.arenaUsed : s.batch.arenaUsed+n]
	s.batch.arenaUsed += n
	return b
}
