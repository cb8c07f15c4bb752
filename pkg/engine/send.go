// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// prepare makes runs of what is pending in u and takes their counters, one block for each group, in the order in which they
// leave. Groups whose session has no counters left are dropped.
func (t *transmitter) prepare(u *txBatch) {
	u.assemble()
	kept := 0
	for i := 0; i < len(u.runs); {
		g := u.spanAt(i)
		i += g.runs
		m := u.meta[g.first]
		var ok bool
		if g.counter, ok = m.keys.Reserve(g.messages); !ok {
			t.dropUnsealable(m, g.messages, drop.TXExhausted)
			continue
		}
		kept += u.moveSpan(&g, kept)
		u.spans = append(u.spans, g)
	}
	u.runs, u.meta = u.runs[:kept], u.meta[:kept]
}

// moveSpan has the runs of g begin at run to, and returns their number.
func (u *txBatch) moveSpan(g *sealSpan, to int) int {
	copy(u.runs[to:], u.runs[g.first:g.first+g.runs])
	copy(u.meta[to:], u.meta[g.first:g.first+g.runs])
	g.first = to
	return g.runs
}

// dropUnsealable drops the messages of a group that begins with m: its session is of no use any more.
func (t *transmitter) dropUnsealable(m *runMeta, messages int, why drop.Reason) {
	t.dropForPeer(m.peer, why, messages)
	m.peer.SlowPath.Rekey()
}

// dropForPeer drops n messages to p, or packets that were to become such.
func (t *transmitter) dropForPeer(p *Peer, why drop.Reason, n int) {
	t.drop(why, n)
	p.trafficOf(t.lane.index).txDrops.Add(uint64(n))
}

// send sends what has been sealed, counts it, and empties u.
func (t *transmitter) send(u *txBatch) {
	t.dropUnsealed(u)
	t.noteSent(u)
	if conn := t.lane.conn.Load(); conn == nil {
		t.dropRuns(u, drop.TXDown)
	} else if len(u.runs) > 0 && (*conn).Send(u.runs) > 0 {
		t.dropFailed(u)
	}
	t.countSent(u)
	u.reset()
}

// dropUnsealed takes out those groups whose session ended before they were sealed.
func (t *transmitter) dropUnsealed(u *txBatch) {
	kept := 0
	for i := range u.spans {
		if g := &u.spans[i]; g.sealed {
			kept += u.moveSpan(g, kept)
		} else {
			t.dropUnsealable(u.meta[g.first], g.messages, drop.TXNoSession)
		}
	}
	u.runs, u.meta = u.runs[:kept], u.meta[:kept]
}

// noteSent tells the peers' timers what is about to be sent: afterwards would be too late, as the answer may be there
// before Send returns, and data would seem unanswered.
func (t *transmitter) noteSent(u *txBatch) {
	for _, m := range u.meta {
		m.peer.sent(t.now, m.keys, m.inner > 0)
	}
}

// countSent counts what was sent.
func (t *transmitter) countSent(u *txBatch) {
	packets, bytes, trains := 0, 0, 0
	var sizes RunSizes
	for i, m := range u.meta {
		packets += u.runs[i].Segments
		sizes.note(u.runs[i].Segments)
		bytes += m.inner
		trains += m.trains
		to := m.peer.trafficOf(t.lane.index)
		to.tx.Add(uint64(m.bytes))
		to.txPackets.Add(uint64(u.runs[i].Segments))
	}
	t.lane.stats.tx.add(packets, bytes, trains, len(u.runs))
	t.lane.stats.tx.sizes.publish(&sizes)
}

// sent notes that something, data or a keepalive, goes out under keys.
func (p *Peer) sent(now int64, keys *session.Keypair, data bool) {
	p.Activity.Sent(now, data)
	if rekeyDue(keys, now, false) {
		p.SlowPath.Rekey()
	}
}

func rekeyDue(keys *session.Keypair, now int64, receiving bool) bool {
	return peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), receiving)
}

// dropFailed counts the runs that Send could not deliver and takes them out.
func (t *transmitter) dropFailed(u *txBatch) {
	kept := 0
	for i := range u.runs {
		switch err := u.runs[i].Err; {
		case err == nil:
			u.runs[kept], u.meta[kept] = u.runs[i], u.meta[i]
			kept++
		case errors.Is(err, underlay.ErrTooBig):
			t.dropForPeer(u.meta[i].peer, drop.TXTooBig, u.runs[i].Segments)
		default:
			t.dropForPeer(u.meta[i].peer, drop.TXSendError, u.runs[i].Segments)
		}
	}
	u.runs, u.meta = u.runs[:kept], u.meta[:kept]
}

func (t *transmitter) dropRuns(u *txBatch, r drop.Reason) {
	for i := range u.runs {
		t.dropForPeer(u.meta[i].peer, r, u.runs[i].Segments)
	}
	u.runs, u.meta = u.runs[:0], u.meta[:0]
}

func (t *transmitter) drop(r drop.Reason, n int) { t.drops.Add(r, n) }
