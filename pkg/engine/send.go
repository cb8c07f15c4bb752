// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/peer"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
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

// seal encrypts all runs in place. Those whose session can send no more are dropped. Single packets of one session that
// stand together are encrypted together, whatever their runs: that fills the cipher's vector lanes.
func (t *transmitter) seal() {
	kept := 0
	for i := 0; i < len(t.runs); {
		n, messages := t.together(i)
		reason := t.sealRuns(t.runs[i:i+n], t.meta[i], messages)
		if reason != drop.None {
			t.drop(reason, messages)
			t.meta[i].peer.Owner.Rekey()
		} else {
			copy(t.runs[kept:], t.runs[i:i+n])
			kept += copy(t.meta[kept:], t.meta[i:i+n])
		}
		i += n
	}
	t.runs, t.meta = t.runs[:kept], t.meta[:kept]
}

// together returns how many runs from i on are encrypted at once: a train, or single packets of one session; and the
// number of their messages.
func (t *transmitter) together(i int) (runs, messages int) {
	first := t.meta[i]
	runs, messages = 1, t.runs[i].Segments
	if first.layout.Segments > 0 {
		return runs, messages
	}
	for _, m := range t.meta[i+1:] {
		if m.keys != first.keys || m.layout.Segments > 0 {
			break
		}
		runs++
		messages += m.segments
	}
	return runs, messages
}

// sealRuns reserves one block of counters and encrypts the runs under it. Unless it returns drop.None, not all of them
// are encrypted, and none may be sent.
func (t *transmitter) sealRuns(runs []underlay.Run, m *runMeta, messages int) drop.Reason {
	counter, ok := m.keys.Reserve(messages)
	if !ok {
		return drop.TXExhausted
	}
	if m.layout.Segments > 0 {
		ok = m.keys.SealTrain(&t.scratch, runs[0].Parts[0], m.layout, counter) > 0
	} else {
		// The parts of runs that stand together do so in t.parts.
		ok = m.keys.SealEach(&t.scratch, runs[0].Parts[:messages], counter)
	}
	if !ok {
		return drop.TXNoSession
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
		m.peer.trafficOf(t.lane.index).tx.Add(uint64(m.bytes))
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
