// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// flush seals and sends all runs, and forgets them.
func (t *transmitter) flush() {
	if len(t.pending.runs) == 0 {
		return
	}
	t.assemble()
	t.seal()
	t.note()
	if conn := t.lane.conn.Load(); conn == nil {
		t.dropRuns(drop.TXDown)
	} else if len(t.runs) > 0 && (*conn).Send(t.runs) > 0 {
		t.dropFailed()
	}
	t.account()
	t.pending.reset()
	t.runs, t.meta, t.parts, t.used = t.runs[:0], t.meta[:0], t.parts[:0], 0
}

// seal encrypts all runs in place. Those whose session can send no more are dropped.
func (t *transmitter) seal() {
	kept := 0
	for i := range t.runs {
		r, m := &t.runs[i], t.meta[i]
		if reason := t.sealRun(r, m); reason != drop.None {
			t.drop(reason, r.Segments)
			m.peer.Owner.Rekey()
			continue
		}
		t.runs[kept], t.meta[kept] = *r, m
		kept++
	}
	t.runs, t.meta = t.runs[:kept], t.meta[:kept]
}

// sealRun reserves one block of counters and encrypts the run under it. Unless it returns drop.None, not all of the run
// is encrypted, and none of it may be sent.
func (t *transmitter) sealRun(r *underlay.Run, m *runMeta) drop.Reason {
	counter, ok := m.keys.Reserve(r.Segments)
	if !ok {
		return drop.TXExhausted
	}
	if m.layout.Segments > 0 {
		if m.keys.SealTrain(&t.scratch, r.Parts[0], m.layout, counter) == 0 {
			return drop.TXNoSession
		}
		return drop.None
	}
	for i, part := range r.Parts {
		n := len(part) - wire.DataOverhead
		l := session.Layout{Segments: 1, Plain: n, Padded: n, LastPlain: n, LastPadded: n}
		if m.keys.SealTrain(&t.scratch, part, l, counter+uint64(i)) == 0 {
			return drop.TXNoSession
		}
	}
	return drop.None
}

// note tells the peers' timers what is about to be sent: afterwards would be too late, as the answer may be there
// before Send returns, and data would seem unanswered.
func (t *transmitter) note() {
	for i := range t.meta {
		m := t.meta[i]
		m.peer.sent(t.now, m.keys, m.inner > 0)
	}
}

// account counts what was sent.
func (t *transmitter) account() {
	packets, bytes, trains := 0, 0, 0
	for i := range t.runs {
		m := t.meta[i]
		packets += t.runs[i].Segments
		bytes += m.inner
		trains += m.trains
		m.peer.traffic[t.lane.index].tx.Add(uint64(m.bytes))
	}
	t.lane.stats.tx.add(packets, bytes, trains, len(t.runs))
}

// sent notes that something, data or a keepalive, goes out under keys.
func (p *Peer) sent(now int64, keys *session.Keypair, data bool) {
	p.Activity.Sent(now, data)
	if rekeyDue(keys, now, false) {
		p.Owner.Rekey()
	}
}

func rekeyDue(keys *session.Keypair, now int64, receiving bool) bool {
	return peer.RekeyDue(now, keys.Created(), keys.Initiator(), keys.Sent(), receiving)
}

// dropFailed counts the runs that Send could not deliver and takes them out.
func (t *transmitter) dropFailed() {
	kept := 0
	for i := range t.runs {
		switch err := t.runs[i].Err; {
		case err == nil:
			t.runs[kept], t.meta[kept] = t.runs[i], t.meta[i]
			kept++
		case errors.Is(err, underlay.ErrTooBig):
			t.drop(drop.TXTooBig, t.runs[i].Segments)
		default:
			t.drop(drop.TXSendError, t.runs[i].Segments)
		}
	}
	t.runs, t.meta = t.runs[:kept], t.meta[:kept]
}

func (t *transmitter) dropRuns(r drop.Reason) {
	for i := range t.runs {
		t.drop(r, t.runs[i].Segments)
	}
	t.runs, t.meta = t.runs[:0], t.meta[:0]
}

func (t *transmitter) drop(r drop.Reason, n int) { t.drops.Add(r, n) }
