// SPDX-License-Identifier: Apache-2.0

package order

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// waitingTrain holds messages that arrived together and wait. The buffer has copies of their plaintexts.
type waitingTrain struct {
	origin   Origin
	buffer   *lane.Buffer
	messages []session.Message
	verified uint64 // bit i: the checksums of the packet in messages[i] are correct
	left     int    // messages that still wait
	bytes    int    // of memory
}

// waitingMessage is one message of a train.
type waitingMessage struct {
	train *waitingTrain
	index int
}

// newWaitingTrain returns a train with room for messages of e.
func (q *Orders) newWaitingTrain(o *order, messages []session.Message, e *Origin) *waitingTrain {
	size := 0
	for i := range messages {
		size += len(messages[i].Padded)
	}
	var t *waitingTrain
	if last := len(q.free) - 1; last < 0 {
		t = new(waitingTrain)
	} else {
		t, q.free = q.free[last], q.free[:last]
	}
	t.origin, t.buffer = *e, q.buffers.Take(max(size, 1))
	t.origin.Buf = nil // handled before
	t.origin.Waited = true
	t.messages, t.verified, t.left = t.messages[:0], 0, 0
	t.bytes = len(t.buffer.Bytes) + len(messages)*waitingMessageBytes
	q.bytes += t.bytes
	o.bytes += t.bytes
	q.trains++
	return t
}

// keep copies a message that has to wait.
func (q *Orders) keep(o *order, number uint32, t *waitingTrain, m *session.Message, checksumOK bool) {
	used := 0
	if n := len(t.messages); n > 0 {
		last := t.messages[n-1].Padded
		used = len(t.buffer.Bytes) - cap(last) + len(last)
	}
	end := used + copy(t.buffer.Bytes[used:], m.Padded)
	o.Keep(number, q.now, waitingMessage{t, len(t.messages)})
	if checksumOK {
		t.verified |= 1 << len(t.messages)
	}
	t.messages = append(t.messages, session.Message{Padded: t.buffer.Bytes[used:end:len(t.buffer.Bytes)]})
	t.left++
	q.lane.Stats.Orders.Waited.Add(1)
}

// waitingRun is consecutive messages of a train that waits.
type waitingRun struct {
	train    *waitingTrain
	from, to int
}

// add adds the next message if it follows in the train.
func (w *waitingRun) add(m waitingMessage) bool {
	if w.train != m.train || w.to != m.index {
		return false
	}
	w.to++
	return true
}

// deliverWaiting delivers messages that have waited. The buffer stays until what was merged is written.
func (q *Orders) deliverWaiting(o *order, w *waitingRun) {
	t := w.train
	if t == nil {
		return
	}
	q.sink.Deliver(o.session, o.keys, t.messages[w.from:w.to], t.verified>>w.from, &t.origin)
	if t.left -= w.to - w.from; t.left > 0 {
		return
	}
	q.bytes -= t.bytes
	o.bytes -= t.bytes
	q.trains--
	q.buffers.Release(t.buffer)
	t.buffer, t.origin = nil, Origin{}
	clear(t.messages)
	if len(q.free) < maxOrders && cap(t.messages) <= underlay.MaxCoalesced {
		q.free = append(q.free, t)
	}
	q.sink.FlushIfFull()
}
