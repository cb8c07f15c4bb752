// SPDX-License-Identifier: Apache-2.0

package order

import (
	"cmp"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Messages of a sprayed flow (session.Stream) arrive at one lane from several ports. The lane
// puts them back into their order after it has opened them, and before anything else sees them.
// Only messages of the same stream wait for each other. All other messages cost one pointer read
// per run.

const (
	// maxPeerOrders is the number of streams of one peer that a lane puts in order at once. It
	// allows for the open streams, and for as many that have just ended. maxOrders is the number
	// for all peers.
	maxPeerOrders = 2 * session.MaxOpenStreams
	maxOrders     = 4 * maxPeerOrders
	// maxWaitingBytes bounds the memory of the messages that wait in one lane, which is a part of rxBytes. Beyond it, the stream with most of it
	// gives up missing messages.
	maxWaitingBytes = 16 << 20
	// waitingMessageBytes is the memory of a waiting message besides its plaintext: its
	// session.Message, and its part of the ring of spread.Order.
	waitingMessageBytes = 64
	// orderIdle is the time in ns after which an unused order is forgotten, with the next message that the lane receives. A lane that
	// receives none forgets it after twice that time at most.
	orderIdle = int64(time.Second)
	// newStream is the number of the first message that a lane sees of a stream below which it waits for all before it.
	newStream = 4096
)

// order is one received stream.
type order struct {
	*spread.Order[waitingMessage]
	session *lane.Session
	keys    *session.Keypair
	number  uint32
	flow    packet.Flow // the inner flow of the first message
	usedAt  int64
	bytes   int // of its trains
}

// Origin says how messages have arrived.
type Origin struct {
	underlay.Datagrams        // whose buffer has them, until they were delivered
	Mark               bool   // the next message is to be marked as congested
	Waited             bool   // for other messages of its stream, so that it says nothing about where the peer is now
	Newest             uint64 // counter of the last message that was accepted
}

// Sink takes messages in their order.
type Sink interface {
	// Deliver passes on the decrypted messages of one run. Bit i of checksumOK means that the checksums of the packet in message i are
	// correct. The plaintexts must stay where they are until Sink's owner writes them.
	Deliver(s *lane.Session, keys *session.Keypair, opened []session.Message, checksumOK uint64, from *Origin)
	// FlushIfFull writes the packets that were delivered if they fill a train.
	FlushIfFull()
}

// Orders are the received streams of a lane. Its methods belong to the receive goroutine.
type Orders struct {
	// Enabled is false for messages from secondary ports, which arrive beside the lanes' messages.
	Enabled bool
	sink    Sink
	lane    *lane.Lane
	buffers *lane.BufferSet // of the receive queue, with which the lane's part of the receive budget is shared
	limit   *lane.Allowance
	now     int64
	from    Origin // of the present run
	list    []*order
	counts  map[*lane.Peer]int // of list
	bytes   int                // of these trains
	trains  int                // that wait
	free    []*waitingTrain    // unused

	sleeping orderSleep
}

// New returns no streams. It passes their messages to sink.
func New(l *lane.Lane, sink Sink, buffers *lane.BufferSet, limit *lane.Allowance) Orders {
	return Orders{sink: sink, lane: l, buffers: buffers, limit: limit}
}

// Concerns reports whether a run under keys must pass through DeliverRun. All other runs may be delivered as they are. The call of DeliverRun
// costs as much as a twentieth of a small packet.
func (q *Orders) Concerns(keys *session.Keypair) bool { return keys.HasStreams() || q.Waiting() }

// Waiting reports whether messages wait.
func (q *Orders) Waiting() bool { return q.trains > 0 }

// DeliverRun delivers the messages of one run of encrypted messages of size bytes. It delivers
// messages of streams in their order.
func (q *Orders) DeliverRun(
	now int64, s *lane.Session, keys *session.Keypair, run []byte, size int, opened []session.Message, checksumOK uint64, from *Origin,
) {
	q.now, q.from = now, *from // a copy, so that the caller's stays on its stack
	if keys.HasStreams() {
		q.deliverStreams(s, keys, run, size, opened, checksumOK, &q.from)
		return
	}
	q.settle(s.Peer, keys, 0, opened) // messages of an older session may wait
	q.sink.Deliver(s, keys, opened, checksumOK, &q.from)
}

// deliverStreams is DeliverRun for a session that has received streams.
func (q *Orders) deliverStreams(s *lane.Session, keys *session.Keypair, run []byte, size int, opened []session.Message, checksumOK uint64, e *Origin) {
	counter := func(i int) uint64 { return wire.Counter(run[i*size:]) }
	streamed := func(i int) bool { return opened[i].Drop == drop.None && session.IsStream(counter(i)) }
	for from, to := 0, 0; from < len(opened); from = to {
		to = from + 1
		if !streamed(from) {
			for to < len(opened) && !streamed(to) {
				to++
			}
			if q.Waiting() {
				q.settle(s.Peer, keys, 0, opened[from:to])
			}
			q.sink.Deliver(s, keys, opened[from:to], checksumOK>>from, e)
			continue
		}
		for to < len(opened) && streamed(to) && counter(to) == counter(from)+uint64(to-from) {
			to++
		}
		q.deliverStream(s, keys, counter(from), opened[from:to], checksumOK>>from, e)
	}
}

// deliverStream delivers consecutive messages of a stream in their order.
func (q *Orders) deliverStream(s *lane.Session, keys *session.Keypair, counter uint64, opened []session.Message, checksumOK uint64, e *Origin) {
	q.lane.Stats.Orders.Received.Add(uint64(len(opened)))
	if q.Waiting() {
		q.settle(s.Peer, keys, counter, opened)
	}
	o, number := q.orderOf(s, keys, counter, opened[0].Padded)
	if o == nil {
		q.lane.Stats.Orders.Unordered.Add(uint64(len(opened)))
		q.sink.Deliver(s, keys, opened, checksumOK, e)
		return
	}
	var train *waitingTrain
	from := 0 // the first message that was neither delivered nor kept
	for i := range opened {
		place := o.Arrive(number+uint32(i), q.now)
		for ; place == spread.Beyond; place = o.Arrive(number+uint32(i), q.now) {
			q.sink.Deliver(s, keys, opened[from:i], checksumOK>>from, e)
			from = i
			q.makeRoom(o, number+uint32(i))
		}
		switch place {
		case spread.Early:
			q.sink.Deliver(s, keys, opened[from:i], checksumOK>>from, e)
			from = i + 1
			if train == nil {
				train = q.newWaitingTrain(o, opened[i:], e)
			}
			q.keep(o, number+uint32(i), train, &opened[i], checksumOK>>i&1 != 0)
			continue
		case spread.Late:
			q.lane.Stats.Orders.Late.Add(1)
		}
		if o.Ready() {
			q.sink.Deliver(s, keys, opened[from:i+1], checksumOK>>from, e)
			from = i + 1
			q.release(o)
		}
	}
	q.sink.Deliver(s, keys, opened[from:], checksumOK>>from, e)
	for q.bytes > maxWaitingBytes || q.Waiting() && q.limit.Exceeded(q.buffers.Held()) && q.overHalf() {
		q.makeRoom(q.fattest(), 0)
	}
}

// overHalf reports whether the messages that wait have more than half of the lane's part of the
// receive budget. Only so much may they have once nothing is left of it: a waiting stream must
// not cost others their messages.
func (q *Orders) overHalf() bool { return 2*q.bytes > q.limit.Limit() }

// Trim leaves the other half to the receive queue, which is full. It reports whether it has delivered messages for that.
func (q *Orders) Trim(now int64) (delivered bool) {
	for q.now = now; q.overHalf(); delivered = true {
		q.makeRoom(q.fattest(), 0)
	}
	return delivered
}

// settle delivers what waits of a flow whose stream has ended, before messages of p that were
// opened under keys. counter is the first message's, if the messages belong to another stream.
// The flow has left from one port only since long before the end, so what is missing of the
// stream is lost. Before the first message of a stream has arrived, the flow's other messages are
// older than the stream.
func (q *Orders) settle(p *lane.Peer, keys *session.Keypair, counter uint64, opened []session.Message) {
	stream, _ := session.SplitStream(counter)
	own := func(o *order) bool { return session.IsStream(counter) && o.keys == keys && o.number == stream }
	for _, o := range q.list {
		if o.Waiting() == 0 || o.session.Peer != p || !o.Begun() || own(o) || !o.contains(opened) {
			continue
		}
		for o.Waiting() > 0 {
			q.makeRoom(o, 0)
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
func (q *Orders) fattest() *order {
	return slices.MaxFunc(q.list, func(a, b *order) int { return cmp.Compare(a.bytes, b.bytes) })
}

// orderOf returns the order of a stream, and the number of the message with the given counter in it, whose plaintext is plain. It returns nil
// if the messages of the stream arrive at several lanes, or there are too many streams.
func (q *Orders) orderOf(s *lane.Session, keys *session.Keypair, counter uint64, plain []byte) (o *order, number uint32) {
	stream, number := session.SplitStream(counter)
	mine := q.Enabled && keys.ClaimStream(stream, q.lane.Index)
	for i, o := range q.list {
		if o.keys != keys || o.number != stream {
			continue
		}
		if o.usedAt = q.now; mine {
			return o, number
		}
		q.endOrder(i)
		return nil, number
	}
	if !mine || !q.roomForOrder(s.Peer) {
		return nil, number
	}
	first := number
	if number < newStream {
		first = 0
	}
	o = &order{Order: spread.NewOrder[waitingMessage](first, q.now), session: s, keys: keys, number: stream, flow: innerFlow(plain), usedAt: q.now}
	q.add(o)
	return o, number
}

// roomForOrder reports whether another stream of p may be put in order. A peer with too many
// loses its least recently used stream, unless the stream is in use. Streams that replace each
// other all the time would be in no order, and cost much. If the lane has too many, the peer with
// most loses one to a peer that still has fewer then.
func (q *Orders) roomForOrder(p *lane.Peer) bool {
	own, full := q.counts[p], len(q.list) >= maxOrders
	if own < maxPeerOrders && !full {
		return true
	}
	if full && own+1 < maxPeerOrders {
		if most := q.greediest(); own+1 < q.counts[most] {
			q.endOrder(q.oldest(most))
			return true
		}
	}
	if own == 0 {
		return false
	}
	oldest := q.oldest(p)
	if q.now-q.list[oldest].usedAt < int64(spread.MaxOrderWait) {
		return false
	}
	q.endOrder(oldest)
	return true
}

func (q *Orders) add(o *order) {
	q.list = append(q.list, o)
	if q.counts == nil {
		q.counts = map[*lane.Peer]int{}
	}
	q.counts[o.session.Peer]++
}

func (q *Orders) remove(i int) {
	p := q.list[i].session.Peer
	q.list = slices.Delete(q.list, i, i+1)
	if q.counts[p]--; q.counts[p] == 0 {
		delete(q.counts, p)
	}
}

// forget removes all orders.
func (q *Orders) forget() {
	clear(q.list)
	q.list = q.list[:0]
	clear(q.counts)
}

// greediest returns the peer with most streams.
func (q *Orders) greediest() (p *lane.Peer) {
	for one, n := range q.counts {
		if n > q.counts[p] {
			p = one
		}
	}
	return p
}

// oldest returns the place of the peer's stream that was not used for longest, -1 if it has none.
func (q *Orders) oldest(p *lane.Peer) int {
	oldest := -1
	for i, one := range q.list {
		if one.session.Peer == p && (oldest < 0 || one.usedAt < q.list[oldest].usedAt) {
			oldest = i
		}
	}
	return oldest
}

// release delivers the messages that need not wait any longer.
func (q *Orders) release(o *order) {
	var run waitingRun
	for {
		m, ok := o.Next(q.now)
		if !ok || !run.add(m) {
			q.deliverWaiting(o, &run)
			run = waitingRun{m.train, m.index, m.index + 1}
		}
		if !ok {
			break
		}
	}
	if n := o.TakeSkipped(); n > 0 {
		q.lane.Stats.Orders.Skipped.Add(n)
	}
}

// makeRoom delivers the first message that waits, for one with the given number.
func (q *Orders) makeRoom(o *order, number uint32) {
	if m, ok := o.MakeRoom(number); ok {
		q.deliverWaiting(o, &waitingRun{m.train, m.index, m.index + 1})
	}
	q.release(o)
}

// Tend delivers the messages whose wait is over, and forgets streams that have ended.
func (q *Orders) Tend(now int64) {
	q.now = now
	for i := 0; i < len(q.list); {
		o := q.list[i]
		q.release(o)
		o.Tick(q.now)
		if q.now-o.usedAt >= orderIdle && o.Waiting() == 0 {
			q.endOrder(i)
			continue
		}
		i++
	}
}

// endOrder delivers what waits in order i, in order, and forgets it.
func (q *Orders) endOrder(i int) {
	o := q.list[i]
	q.remove(i)
	for o.Waiting() > 0 {
		q.makeRoom(o, 0)
	}
}
