// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Messages of a sprayed flow (session.Stream) arrive at one lane from several ports. The lane puts them back into their order after it has
// opened them, and before anything else sees them: only messages of the same stream wait for each other. All other messages cost one
// pointer read per run.

const (
	// maxPeerOrders is the number of streams of one peer that a lane puts in order at once: those that the peer may have open, and as many
	// that have just ended. maxOrders is that of all peers.
	maxPeerOrders = 2 * session.MaxOpenStreams
	maxOrders     = 4 * maxPeerOrders
	// maxWaitingBytes bounds the memory of the messages that wait in one lane, which is a part of rxBytes. Beyond it, the stream with most of it
	// gives up missing messages.
	maxWaitingBytes = 16 << 20
	// waitingMessageBytes is what a waiting message takes besides its plaintext: its session.Message, and its part of the ring of spread.Order.
	waitingMessageBytes = 64
	// streamBytes bounds the memory of the replay windows of all streams of all peers: those of 400 sessions.
	streamBytes = 128 << 20
	// orderPause is the pause between two receive calls while messages wait and none arrive.
	orderPause = 50 * time.Microsecond
	// orderIdle is the time in ns after which an unused order is forgotten, with the next message that the lane receives. A lane that
	// receives none forgets it after twice that time at most.
	orderIdle = int64(time.Second)
	// newStream is the number of the first message that a lane sees of a stream below which it waits for all before it.
	newStream = 4096
)

// AnnounceStreams lets the peer send sprayed flows in a session (session.Keypair.AnnounceStreams). It is false if others have all memory.
func (e *Engine) AnnounceStreams(keys *session.Keypair) bool { return keys.AnnounceStreams(e.streams) }

// orderCounters counts messages of received streams.
type orderCounters struct {
	received  atomic.Uint64
	waited    atomic.Uint64 // arrived before others that belong in front of them
	late      atomic.Uint64 // arrived after the lane had given them up
	skipped   atomic.Uint64 // given up: they were lost, or were late
	unordered atomic.Uint64 // delivered as they came: they arrived at several lanes, or the peer had too many streams
}

func (c *orderCounters) load() OrderStats {
	return OrderStats{Waited: c.waited.Load(), Late: c.late.Load(), Skipped: c.skipped.Load(), Unordered: c.unordered.Load()}
}

// order is one received stream.
type order struct {
	*spread.Order[waitingMessage]
	session *Session
	keys    *session.Keypair
	number  uint32
	flow    packet.Flow // the inner flow of the first message
	usedAt  int64
	bytes   int // of its trains
}

// waitingTrain holds messages that arrived together and wait. The buffer has copies of their plaintexts.
type waitingTrain struct {
	element  element
	buffer   *buffer
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

// orders are the received streams of a lane.
type orders struct {
	list   []*order
	counts map[*Peer]int   // of list
	bytes  int             // of these trains
	trains int             // that wait
	free   []*waitingTrain // unused

	sleeping orderSleep
}

// waiting reports whether messages wait.
func (o *orders) waiting() bool { return o.trains > 0 }

// ordinary reports whether a run under keys may be delivered as it is: no streams concern it.
func (r *receiver) ordinary(keys *session.Keypair) bool {
	return !keys.HasStreams() && !r.orders.waiting()
}

// deliverRun delivers the messages of one run, those of streams in their order. It is not for ordinary runs, which it would deliver, too: the call
// costs as much as a twentieth of a small packet.
func (r *receiver) deliverRun(s *Session, keys *session.Keypair, run []byte, size int, opened []session.Message, checksumOK uint64, e *element) {
	if keys.HasStreams() {
		r.deliverStreams(s, keys, run, size, opened, checksumOK, e)
		return
	}
	r.settle(s.Peer, keys, 0, opened) // messages of an older session may wait
	r.deliver(s, keys, opened, checksumOK, e)
}

// deliverStreams is deliverRun for a session that has received streams.
func (r *receiver) deliverStreams(s *Session, keys *session.Keypair, run []byte, size int, opened []session.Message, checksumOK uint64, e *element) {
	counter := func(i int) uint64 { return wire.Counter(run[i*size:]) }
	streamed := func(i int) bool { return opened[i].Drop == drop.None && session.IsStream(counter(i)) }
	for from, to := 0, 0; from < len(opened); from = to {
		to = from + 1
		if !streamed(from) {
			for to < len(opened) && !streamed(to) {
				to++
			}
			if r.orders.waiting() {
				r.settle(s.Peer, keys, 0, opened[from:to])
			}
			r.deliver(s, keys, opened[from:to], checksumOK>>from, e)
			continue
		}
		for to < len(opened) && streamed(to) && counter(to) == counter(from)+uint64(to-from) {
			to++
		}
		r.deliverStream(s, keys, counter(from), opened[from:to], checksumOK>>from, e)
	}
}

// deliverStream delivers consecutive messages of a stream in their order.
func (r *receiver) deliverStream(s *Session, keys *session.Keypair, counter uint64, opened []session.Message, checksumOK uint64, e *element) {
	r.lane.stats.orders.received.Add(uint64(len(opened)))
	if r.orders.waiting() {
		r.settle(s.Peer, keys, counter, opened)
	}
	o, number := r.orderOf(s, keys, counter, opened[0].Padded)
	if o == nil {
		r.lane.stats.orders.unordered.Add(uint64(len(opened)))
		r.deliver(s, keys, opened, checksumOK, e)
		return
	}
	var train *waitingTrain
	from := 0 // the first message that was neither delivered nor kept
	for i := range opened {
		place := o.Arrive(number+uint32(i), r.now)
		for ; place == spread.Beyond; place = o.Arrive(number+uint32(i), r.now) {
			r.deliver(s, keys, opened[from:i], checksumOK>>from, e)
			from = i
			r.makeRoom(o, number+uint32(i))
		}
		switch place {
		case spread.Early:
			r.deliver(s, keys, opened[from:i], checksumOK>>from, e)
			from = i + 1
			if train == nil {
				train = r.newWaitingTrain(o, opened[i:], e)
			}
			r.keep(o, number+uint32(i), train, &opened[i], checksumOK>>i&1 != 0)
			continue
		case spread.Late:
			r.lane.stats.orders.late.Add(1)
		}
		if o.Ready() {
			r.deliver(s, keys, opened[from:i+1], checksumOK>>from, e)
			from = i + 1
			r.release(o)
		}
	}
	r.deliver(s, keys, opened[from:], checksumOK>>from, e)
	for r.orders.bytes > maxWaitingBytes || r.orders.waiting() && r.queue.byteLimit.exceeded(r.queue.buffers.held()) && r.overHalf() {
		r.makeRoom(r.orders.fattest(), 0)
	}
}

// overHalf reports whether the messages that wait have more than half of the lane's part of the receive budget. Only so much may they have
// once nothing is left of it: others must not lose messages because those of a stream wait.
func (r *receiver) overHalf() bool { return 2*r.orders.bytes > r.queue.byteLimit.limit() }

// trimOrders leaves the other half to the receive queue, which is full.
func (r *receiver) trimOrders() {
	if !r.overHalf() {
		return
	}
	for r.overHalf() {
		r.makeRoom(r.orders.fattest(), 0)
	}
	r.flush()
}

// settle delivers what waits of a flow whose stream has ended, before messages of p that were opened under keys. counter is that of the first
// message, if they are those of another stream. The flow has left from one port only since long before the end, so what is missing of the
// stream is lost. Before the first message of a stream has arrived, the flow's other messages are older than the stream.
func (r *receiver) settle(p *Peer, keys *session.Keypair, counter uint64, opened []session.Message) {
	stream, _ := session.SplitStream(counter)
	own := func(o *order) bool { return session.IsStream(counter) && o.keys == keys && o.number == stream }
	for _, o := range r.orders.list {
		if o.Waiting() == 0 || o.session.Peer != p || !o.Begun() || own(o) || !o.contains(opened) {
			continue
		}
		for o.Waiting() > 0 {
			r.makeRoom(o, 0)
		}
	}
}

// contains reports whether a message is one of the flow.
func (o *order) contains(opened []session.Message) bool {
	return slices.ContainsFunc(opened, func(m session.Message) bool { return o.flow.Matches(innerFlow(m.Padded)) })
}

// innerFlow returns the flow of a decrypted packet, the zero Flow for anything else.
func innerFlow(plain []byte) packet.Flow {
	n, ok := packet.Length(plain)
	if !ok {
		return packet.Flow{}
	}
	return packet.FlowOf(plain[:n])
}

// fattest returns the stream with most bytes that wait.
func (o *orders) fattest() *order {
	return slices.MaxFunc(o.list, func(a, b *order) int { return cmp.Compare(a.bytes, b.bytes) })
}

// orderOf returns the order of a stream, and the number of the message with the given counter in it, whose plaintext is plain. It returns nil
// if the messages of the stream arrive at several lanes, or there are too many streams.
func (r *receiver) orderOf(s *Session, keys *session.Keypair, counter uint64, plain []byte) (o *order, number uint32) {
	stream, number := session.SplitStream(counter)
	mine := r.recv.tryRecv != nil && keys.ClaimStream(stream, r.lane.index)
	for i, o := range r.orders.list {
		if o.keys != keys || o.number != stream {
			continue
		}
		if o.usedAt = r.now; mine {
			return o, number
		}
		r.endOrder(i)
		return nil, number
	}
	if !mine || !r.roomForOrder(s.Peer) {
		return nil, number
	}
	first := number
	if number < newStream {
		first = 0
	}
	o = &order{Order: spread.NewOrder[waitingMessage](first, r.now), session: s, keys: keys, number: stream, flow: innerFlow(plain), usedAt: r.now}
	r.orders.add(o)
	return o, number
}

// roomForOrder reports whether another stream of p may be put in order. A peer with too many loses the one that was not used for longest,
// unless that is in use: streams that replace each other all the time would be in no order, and cost much. If the lane has too many, the peer
// with most loses one to a peer that still has fewer then.
func (r *receiver) roomForOrder(p *Peer) bool {
	own, full := r.orders.counts[p], len(r.orders.list) >= maxOrders
	if own < maxPeerOrders && !full {
		return true
	}
	if full && own+1 < maxPeerOrders {
		if most := r.orders.greediest(); own+1 < r.orders.counts[most] {
			r.endOrder(r.orders.oldest(most))
			return true
		}
	}
	if own == 0 {
		return false
	}
	oldest := r.orders.oldest(p)
	if r.now-r.orders.list[oldest].usedAt < int64(spread.MaxOrderWait) {
		return false
	}
	r.endOrder(oldest)
	return true
}

func (o *orders) add(one *order) {
	o.list = append(o.list, one)
	if o.counts == nil {
		o.counts = map[*Peer]int{}
	}
	o.counts[one.session.Peer]++
}

func (o *orders) remove(i int) {
	p := o.list[i].session.Peer
	o.list = slices.Delete(o.list, i, i+1)
	if o.counts[p]--; o.counts[p] == 0 {
		delete(o.counts, p)
	}
}

// forget removes all orders.
func (o *orders) forget() {
	clear(o.list)
	o.list = o.list[:0]
	clear(o.counts)
}

// greediest returns the peer with most streams.
func (o *orders) greediest() (p *Peer) {
	for one, n := range o.counts {
		if n > o.counts[p] {
			p = one
		}
	}
	return p
}

// oldest returns the place of the peer's stream that was not used for longest, -1 if it has none.
func (o *orders) oldest(p *Peer) int {
	oldest := -1
	for i, one := range o.list {
		if one.session.Peer == p && (oldest < 0 || one.usedAt < o.list[oldest].usedAt) {
			oldest = i
		}
	}
	return oldest
}

// newWaitingTrain returns a train with room for messages of e.
func (r *receiver) newWaitingTrain(o *order, messages []session.Message, e *element) *waitingTrain {
	size := 0
	for i := range messages {
		size += len(messages[i].Padded)
	}
	var t *waitingTrain
	if last := len(r.orders.free) - 1; last < 0 {
		t = new(waitingTrain)
	} else {
		t, r.orders.free = r.orders.free[last], r.orders.free[:last]
	}
	t.element, t.buffer = *e, r.queue.buffers.take(max(size, 1))
	t.element.Buf, t.element.buffer = nil, nil // handled before
	t.element.waited = true
	t.messages, t.verified, t.left = t.messages[:0], 0, 0
	t.bytes = len(t.buffer.bytes) + len(messages)*waitingMessageBytes
	r.orders.bytes += t.bytes
	o.bytes += t.bytes
	r.orders.trains++
	return t
}

// keep copies a message that has to wait.
func (r *receiver) keep(o *order, number uint32, t *waitingTrain, m *session.Message, checksumOK bool) {
	used := 0
	if n := len(t.messages); n > 0 {
		last := t.messages[n-1].Padded
		used = len(t.buffer.bytes) - cap(last) + len(last)
	}
	end := used + copy(t.buffer.bytes[used:], m.Padded)
	o.Keep(number, r.now, waitingMessage{t, len(t.messages)})
	if checksumOK {
		t.verified |= 1 << len(t.messages)
	}
	t.messages = append(t.messages, session.Message{Padded: t.buffer.bytes[used:end:len(t.buffer.bytes)]})
	t.left++
	r.lane.stats.orders.waited.Add(1)
}

// release delivers the messages that need not wait any longer.
func (r *receiver) release(o *order) {
	var run waitingRun
	for {
		m, ok := o.Next(r.now)
		if !ok || !run.add(m) {
			r.deliverWaiting(o, &run)
			run = waitingRun{m.train, m.index, m.index + 1}
		}
		if !ok {
			break
		}
	}
	if n := o.TakeSkipped(); n > 0 {
		r.lane.stats.orders.skipped.Add(n)
	}
}

// makeRoom delivers the first message that waits, for one with the given number.
func (r *receiver) makeRoom(o *order, number uint32) {
	if m, ok := o.MakeRoom(number); ok {
		r.deliverWaiting(o, &waitingRun{m.train, m.index, m.index + 1})
	}
	r.release(o)
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
func (r *receiver) deliverWaiting(o *order, w *waitingRun) {
	t := w.train
	if t == nil {
		return
	}
	r.deliver(o.session, o.keys, t.messages[w.from:w.to], t.verified>>w.from, &t.element)
	if t.left -= w.to - w.from; t.left > 0 {
		return
	}
	r.orders.bytes -= t.bytes
	o.bytes -= t.bytes
	r.orders.trains--
	r.queue.buffers.release(t.buffer)
	t.buffer, t.element = nil, element{}
	clear(t.messages)
	if len(r.orders.free) < maxOrders && cap(t.messages) <= maxOpenMessages {
		r.orders.free = append(r.orders.free, t)
	}
	r.flushIfFull()
}

// tendOrders delivers the messages whose wait is over, and forgets streams that have ended.
func (r *receiver) tendOrders() {
	for i := 0; i < len(r.orders.list); {
		o := r.orders.list[i]
		r.release(o)
		o.Tick(r.now)
		if r.now-o.usedAt >= orderIdle && o.Waiting() == 0 {
			r.endOrder(i)
			continue
		}
		i++
	}
}

// endOrder delivers what waits in order i, in order, and forgets it.
func (r *receiver) endOrder(i int) {
	o := r.orders.list[i]
	r.orders.remove(i)
	for o.Waiting() > 0 {
		r.makeRoom(o, 0)
	}
}
