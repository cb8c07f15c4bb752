// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"hash/maphash"
	"math"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/fqcodel"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive/order"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// The receive queue of a lane holds the elements that have arrived and are not opened.
const (
	// rxFlows is the number of buckets for flows, as in Linux.
	rxFlows = 1024
	// rxPeerFlows is the number of flows that one peer may have besides the flow of its other
	// ports. A peer of this program has as many source ports.
	rxPeerFlows = 64
	// rxElements is the maximum number of elements. It limits small ones; large ones reach the limit of bytes first.
	rxElements = 4096
	// rxBytes bounds the memory of all lanes' queues in bytes. A lane has rxReserve for itself, and more if the others leave it (budget). The
	// slow start of one flow at 4 Gbit/s and a round trip of 100 ms overshoots by some 50 MB.
	rxBytes      = 64 << 20
	rxReserve    = 4 << 20
	rxBytesChunk = 1 << 20
	// rxMessages bounds the messages in all queues, shared likewise. A message is refused as a replay if more messages of its session than
	// the window holds pass it in other flows.
	rxMessages        = session.WindowSize / 4 * 3
	rxMessagesReserve = 4096
	rxMessagesChunk   = 512
)

// element is one received element: a datagram or a train of datagrams.
type element struct {
	order.Origin
	flow   flowKey
	buffer *lane.Buffer // that has Buf
	skip   int          // bytes at the start of Buf whose messages were dropped
}

// flowKey identifies a flow of the receive queue. A flow is the messages of a peer from one of
// its spread source ports, which are one inner flow or few. The messages from all other ports are
// one flow, whose order survives a change of the peer's endpoint. The messages are not
// authenticated yet.
type flowKey struct {
	peer *lane.Peer
	port uint16 // 1 + a spread source port modulo rxPeerFlows; 0 for all others
}

// train returns the messages that were not dropped.
func (e *element) train() []byte { return e.Buf[e.skip:e.N] }

// rxQueue is the receive queue of one lane.
type rxQueue struct {
	*fqcodel.Queue[element]
	buffers  lane.BufferSet
	messages int // in the queue
	bulk     int // elements in the queue of at least bulkThreshold bytes
	seed     maphash.Seed
	peers    map[*lane.Peer]*peerFlows // with elements in the queue
	spare    []*peerFlows              // unused
	// The parts of the engine's Budget that the lane may use.
	byteLimit, messageLimit lane.Allowance
}

// peerFlows counts the elements in the queue of each flow of a peer.
type peerFlows struct {
	elements [1 + rxPeerFlows]int32
	active   int // flows with elements
}

// Budget is the memory and the number of messages that the receive queues of an engine's lanes
// share.
type Budget struct{ bytes, messages lane.Budget }

func (b *Budget) Init(lanes int) {
	b.bytes.Init(rxBytes, rxReserve, rxBytesChunk, lanes)
	b.messages.Init(rxMessages, rxMessagesReserve, rxMessagesChunk, lanes)
}

func newRXQueue(r *Receiver, b *Budget) rxQueue {
	return rxQueue{
		Queue: fqcodel.New(fqcodel.Config[element]{
			Params: lane.QueueParams,
			Flows:  rxFlows, Quantum: lane.FlowQuantum, Elements: rxElements, Bytes: math.MaxInt, // weighted ones: Budget bounds those in memory
			Signal: r.signal,
		}),
		buffers:      lane.BufferSet{Memory: &r.lane.Shared.Memory},
		peers:        map[*lane.Peer]*peerFlows{},
		seed:         maphash.MakeSeed(),
		byteLimit:    lane.Allowance{Budget: &b.bytes},
		messageLimit: lane.Allowance{Budget: &b.messages},
	}
}

// full reports whether an element must leave the queue before Push.
func (q *rxQueue) full() bool {
	return q.Full() || q.byteLimit.Exceeded(q.buffers.Used) || q.messageLimit.Exceeded(q.messages)
}

// recycle makes the buffers of handled elements available again, and returns what the queue does not need to the other lanes.
func (q *rxQueue) recycle() {
	q.buffers.Recycle()
	q.byteLimit.Shrink(q.buffers.Used)
	q.messageLimit.Shrink(q.messages)
}

// close returns all that the queue shares with other lanes.
func (q *rxQueue) close() {
	q.byteLimit.Close()
	q.messageLimit.Close()
}

// admit moves received element i to the queue. If the queue is full, the flow with most bytes in it loses its oldest elements. Messages in
// front of the first data message of a known session are handled at once: rejecting them is cheap, and handshakes need not wait.
func (r *Receiver) admit(i int) {
	q, d := &r.queue, &r.in[i]
	first, flow := r.firstData(d)
	if first > 0 || first == d.N {
		front := element{Origin: order.Origin{Datagrams: *d}}
		front.N = first
		r.handleDatagrams(&front)
		r.FlushIfFull()
	}
	if first == d.N {
		return
	}
	if q.full() && r.orders.Trim(r.now) {
		r.flush()
	}
	for q.full() {
		e, ok := q.PopFattest()
		if !ok {
			break
		}
		r.drop(drop.RXQueueFull, e.messages())
		r.noteUnopened(&e, e.messages(), len(e.train()))
		q.messages -= e.messages()
		q.leave(e.flow)
		q.forget(&e)
		q.recycle()
	}
	e := element{Origin: order.Origin{Datagrams: *d}, flow: flow, buffer: q.buffers.Take(d.N), skip: first}
	if len(e.buffer.Bytes) < lane.MaxElement {
		e.Buf = e.buffer.Bytes
		copy(e.Buf, d.Buf[:d.N])
	} else {
		e.buffer, r.buffers[i] = r.buffers[i], e.buffer
		d.Buf = r.buffers[i].Bytes
	}
	if d.N >= bulkThreshold {
		q.bulk++
	}
	q.messages += e.messages()
	q.Push(uint32(maphash.Comparable(q.seed, flow)), e, d.N*q.enter(flow), r.now)
}

// enter counts an element of a flow, and returns the weight of its bytes. If other peers also
// have elements, the weight is the number of flows of the peer. So each peer has the same share
// of the lane, and of a full queue, however many source ports it sends from.
func (q *rxQueue) enter(flow flowKey) (weight int) {
	p := q.peers[flow.peer]
	if p == nil {
		p = q.unusedPeerFlows()
		q.peers[flow.peer] = p
	}
	if p.elements[flow.port]++; p.elements[flow.port] == 1 {
		p.active++
	}
	if len(q.peers) == 1 {
		return 1
	}
	return p.active
}

// unusedPeerFlows returns counts of zero.
func (q *rxQueue) unusedPeerFlows() *peerFlows {
	last := len(q.spare) - 1
	if last < 0 {
		return new(peerFlows)
	}
	p := q.spare[last]
	q.spare = q.spare[:last]
	return p
}

// leave ends enter.
func (q *rxQueue) leave(flow flowKey) {
	p := q.peers[flow.peer]
	if p.elements[flow.port]--; p.elements[flow.port] > 0 {
		return
	}
	if p.active--; p.active > 0 {
		return
	}
	delete(q.peers, flow.peer)
	if len(q.spare) < lane.OwnBuffers {
		q.spare = append(q.spare, p)
	}
}

// firstData returns the offset of the first data message of a known session in d, d.N if there is none, and its flow.
func (r *Receiver) firstData(d *underlay.Datagrams) (at int, flow flowKey) {
	if d.Truncated || d.SegSize <= 0 {
		return d.N, flow
	}
	for ; at < d.N; at += d.SegSize {
		if s := r.sessionOf(d.Buf[at:min(at+d.SegSize, d.N)]); s != nil {
			return at, receivedFlow(s.Peer, d.From.Dst.Port())
		}
	}
	return d.N, flow
}

// sessionOf returns the session of a data message; nil for other messages, and if it is not known.
func (r *Receiver) sessionOf(msg []byte) *lane.Session {
	if kind, reason := wire.Classify(msg); reason != drop.None || kind != wire.TypeData {
		return nil
	}
	s, _ := r.lane.Shared.Sessions.Lookup(wire.ReceiverIndex(msg))
	return s
}

// receivedFlow returns the flow of messages that a peer sends from a port.
func receivedFlow(p *lane.Peer, port uint16) flowKey {
	if ports := p.Gathered.Load(); ports != nil && ports.Contains(port) {
		return flowKey{p, 1 + port%rxPeerFlows}
	}
	return flowKey{peer: p}
}

// messages returns the number of messages of e that were not dropped.
func (e *element) messages() int { return session.Messages(len(e.train()), e.SegSize) }

// signal signals congestion on the first message of e. It marks the message if its outer header
// says that it can carry a mark, and drops it otherwise. It is the queue's fqcodel.Config.Signal.
// A message that is no data, which may follow dropped data, is neither marked nor dropped.
func (r *Receiver) signal(e *element) (empty bool) {
	train := e.train()
	if kind, reason := wire.Classify(train[:min(e.SegSize, len(train))]); reason != drop.None || kind != wire.TypeData {
		return false
	}
	if e.ECN != packet.NotECT {
		e.Mark = true
		return false
	}
	r.drop(drop.RXCongestion, 1)
	r.noteUnopened(e, 1, min(e.SegSize, len(train)))
	r.queue.messages--
	e.skip += e.SegSize
	if e.skip < e.N {
		return false
	}
	r.queue.leave(e.flow)
	r.queue.forget(e)
	return true
}

// pop is fqcodel.Queue.Pop, and updates the counts.
func (q *rxQueue) pop(now int64) (e element, sparse, ok bool) {
	e, sparse, ok = q.Pop(now)
	if !ok {
		return e, false, false
	}
	q.messages -= e.messages()
	q.leave(e.flow)
	if e.N >= bulkThreshold {
		q.bulk--
	}
	return e, sparse, true
}

// forget releases an element that has left the queue and is not handled.
func (q *rxQueue) forget(e *element) {
	if e.N >= bulkThreshold {
		q.bulk--
	}
	q.buffers.Release(e.buffer)
}
