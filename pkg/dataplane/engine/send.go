// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// prepare builds the runs of b and reserves their nonce counters, one block per span, in send order. It drops spans whose
// session has no counters left.
func (t *transmitter) prepare(b *txBatch) {
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
			t.dropUnsealable(m, g.messages, drop.TXExhausted)
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
func (t *transmitter) dropUnsealable(m *runMeta, messages int, why drop.Reason) {
	t.dropForPeer(m.peer, why, messages)
	m.peer.SlowPath.Rekey()
}

// dropForPeer counts n messages or packets to p as dropped.
func (t *transmitter) dropForPeer(p *Peer, why drop.Reason, n int) {
	t.drop(why, n)
	p.trafficOf(t.lane.index).txDrops.Add(uint64(n))
}

// send sends the sealed runs of b, counts them, and empties b.
func (t *transmitter) send(b *txBatch) {
	t.dropUnsealed(b)
	t.noteSent(b)
	if conn := t.lane.conn.Load(); conn == nil {
		t.dropRuns(b, drop.TXDown)
	} else {
		t.setGroups(b)
		t.holdFull(conn, b)
		if len(b.runs) > 0 && (*conn).Send(b.runs) > 0 {
			t.handleFailed(conn, b)
		}
	}
	t.countSent(b.meta)
	b.reset()
}

// dropUnsealed drops the spans whose session ended before they were sealed.
func (t *transmitter) dropUnsealed(b *txBatch) {
	kept := 0
	for i := range b.spans {
		if g := &b.spans[i]; g.sealed {
			kept += b.moveSpan(g, kept)
		} else {
			t.dropUnsealable(b.meta[g.first], g.messages, drop.TXNoSession)
		}
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}

// noteSent updates the peers' timers before sending. An answer may arrive before Send returns, and data would otherwise seem
// unanswered.
func (t *transmitter) noteSent(b *txBatch) {
	for _, m := range b.meta {
		m.peer.sent(t.now, m)
	}
}

// countSent counts the runs that were sent.
func (t *transmitter) countSent(runs []*runMeta) {
	packets, bytes, trains, sprayed := 0, 0, 0, 0
	var sizes RunSizes
	for _, m := range runs {
		packets += m.segments
		sizes.note(m.segments)
		bytes += m.inner
		trains += m.trains
		if m.streamed {
			sprayed += m.segments
		}
		to := m.peer.trafficOf(t.lane.index)
		to.tx.Add(uint64(m.bytes))
		to.txPackets.Add(uint64(m.segments))
		if m.source > 0 { // afterwards: no source has more messages than all together
			m.peer.countSource(m.source, m.segments)
		}
	}
	t.lane.stats.tx.add(packets, bytes, trains, len(runs))
	t.lane.stats.tx.sizes.publish(&sizes)
	if sprayed > 0 {
		t.lane.stats.sprayed.Add(uint64(sprayed))
	}
}

// sent updates the timers for the messages of a run.
func (p *Peer) sent(now int64, m *runMeta) {
	if m.isControl() {
		p.Activity.SentControl(now)
	} else {
		p.Activity.Sent(now, m.inner > 0)
	}
	if rekeyDue(m.keys, now, false) && (!m.streamed || p.Current.Load() == m.keys) { // a stream may end in the last session
		p.SlowPath.Rekey()
	}
}

func rekeyDue(keys *session.Keypair, now int64, receiving bool) bool {
	return peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), receiving)
}

// handleFailed removes the runs that Send could not send: it holds those for which a send buffer has no room, and counts the others as
// drops.
func (t *transmitter) handleFailed(conn *underlay.Lane, b *txBatch) {
	kept := 0
	for i := range b.runs {
		r, m := &b.runs[i], b.meta[i]
		switch {
		case r.Err == nil:
			b.runs[kept], b.meta[kept] = b.runs[i], b.meta[i]
			kept++
		case t.holds && errors.Is(r.Err, underlay.ErrSendBufferFull):
			t.hold(conn, r, m)
		default:
			if r.Sent > 0 {
				sent := m.part(r.Sent)
				t.countSent([]*runMeta{&sent})
			}
			t.dropUnsent(m, r.Err, r.Segments-r.Sent)
		}
	}
	b.runs, b.meta = b.runs[:kept], b.meta[:kept]
}

// dropUnsent counts messages of a run that Send could not send, and reports their size if that is the reason.
func (t *transmitter) dropUnsent(m *runMeta, err error, messages int) {
	t.dropForPeer(m.peer, sendDropReason(err), messages)
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

func (t *transmitter) dropRuns(b *txBatch, r drop.Reason) {
	for i := range b.runs {
		t.dropForPeer(b.meta[i].peer, r, b.runs[i].Segments)
	}
	b.runs, b.meta = b.runs[:0], b.meta[:0]
}

func (t *transmitter) drop(r drop.Reason, n int) { t.drops.Add(r, n) }
