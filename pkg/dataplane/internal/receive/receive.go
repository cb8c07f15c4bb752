// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive/order"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// Slots is the number of elements that one receive call returns.
	Slots = 64
	// rxTrains bounds them until so many small ones wait: the others then have no memory, and the trains stay in the cache.
	rxTrains = 16
	// maxRunMessages is the largest number of messages in a 64 KiB receive buffer: each has at least 32 bytes.
	maxRunMessages = 65536 / wire.DataOverhead
	// bulkThreshold is the size of a received run, in bytes, from which it is bulk: opening it is worth the help of a worker.
	bulkThreshold = 16 << 10
	// flushThreshold is the number of bytes from which the lane writes what it has merged: they fill a train, and are in the cache.
	// With less, the rest of a train that needed two sends is still to come.
	flushThreshold = 63 << 10
	// orderPause is the pause between two receive calls while messages wait for others of their stream and none arrive.
	orderPause = 50 * time.Microsecond
)

// Receiver is the receive direction of one lane, used by one goroutine.
type Receiver struct {
	lane     *lane.Lane
	in       []underlay.Datagrams // of the last receive call
	buffers  []*lane.Buffer       // of in
	slots    int                  // of in, for the next receive call
	queue    rxQueue
	orders   order.Orders
	observed *lane.FlowTable // while messages of a run are delivered and flows are observed
	opened   []session.Message
	scratch  session.Scratch
	merger   *offload.Merger
	routes   lane.RouteCache
	ahead    lookahead
	recv     receiveJob
	singles  singles
	now      int64
	packets  int // since publish last updated the counters
	bytes    int
	trains   int
	runs     int
	merged   int // bytes in merger
	marks    int // messages marked as congested
	sizes    lane.RunSizes
	load     lane.Workload
}

// New returns a receiver that receives n elements at a time.
func New(l *lane.Lane, n int, b *Budget) *Receiver {
	r := &Receiver{
		lane:    l,
		in:      make([]underlay.Datagrams, n),
		buffers: make([]*lane.Buffer, n),
		opened:  make([]session.Message, maxRunMessages),
		merger:  offload.NewMerger(l.Shared.USO),
	}
	r.setSlots(min(n, rxTrains))
	r.queue = newRXQueue(r, b)
	r.orders = order.New(l, r, &r.queue.buffers, &r.queue.byteLimit)
	return r
}

// setSlots sets the number of elements of the next receive call. Buffers are allocated when they are first needed.
func (r *Receiver) setSlots(n int) {
	r.slots = n
	for i := n - 1; i >= 0 && r.buffers[i] == nil; i-- {
		r.buffers[i] = lane.NewBuffer(lane.ReceiveClass, i)
		r.in[i].Buf = r.buffers[i].Bytes
	}
}

// Run receives from conn until it is closed. tryRecv receives without blocking; nil if that does not pay. For yield see
// engine.Config.OnLoopStart.
func (r *Receiver) Run(conn underlay.Receiver, tryRecv func([]underlay.Datagrams) int, yield func(bool)) {
	r.load.Yield = yield
	defer r.queue.close()
	defer r.orders.Close()
	r.recv.tryRecv, r.orders.Enabled = tryRecv, tryRecv != nil
	for {
		n, err := r.next(conn)
		switch {
		case err == nil:
			r.handleReceived(n)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			r.drop(drop.RXReceive, 1)
			time.Sleep(lane.ErrorPause)
		}
	}
}

// next receives elements into r.in, or takes elements that a worker has received. It blocks if no
// element waits.
func (r *Receiver) next(conn underlay.Receiver) (n int, err error) {
	n, ok := r.takeReceived()
	switch {
	case ok:
	case r.idle() && !r.orders.Waiting():
		r.lane.Stats.Rx.Progress.Rest()
		r.orders.Sleep()
		n, err = conn.Recv(r.in[:r.slots])
		r.orders.Wake()
	case r.recv.tryRecv != nil:
		n = r.recv.tryRecv(r.in[:r.slots])
	}
	if n == 0 && err == nil && r.idle() && r.orders.Waiting() {
		time.Sleep(orderPause)
	}
	return n, err
}

// idle reports whether no received element waits.
func (r *Receiver) idle() bool { return r.queue.Len() == 0 && r.ahead.empty() }

// handleReceived takes the first n elements of in, and handles a quantum of the waiting elements.
// Without a backlog it handles them where they are.
func (r *Receiver) handleReceived(n int) {
	r.lane.Stats.Rx.Progress.Work()
	r.now = r.lane.Shared.Clock()
	bytes := 0
	for i := range n {
		bytes += r.in[i].N
		r.sizes.NoteBytes(r.in[i].N, r.in[i].SegSize)
	}
	r.runs += n
	switch {
	case bytes > n*tun.BigTrain:
		r.setSlots(min(len(r.in), rxTrains))
	case n == r.slots:
		r.setSlots(len(r.in))
	}
	if r.idle() && bytes <= lane.Quantum {
		for i := range n {
			r.handleElement(&element{Origin: order.Origin{Datagrams: r.in[i]}})
		}
	} else {
		for i := range n {
			r.admit(i)
		}
		if r.merged > 0 { // packets of a session that began meanwhile, which are in r.in
			r.flush()
		}
		r.handleQuantum()
	}
	r.openSingles()
	r.orders.Tend(r.now)
	r.flush()
	r.publish()
}

// publish updates the counters that others read.
func (r *Receiver) publish() {
	r.lane.Stats.Rx.Add(r.packets, r.bytes, r.trains, r.runs)
	r.lane.Stats.Rx.Sizes.Publish(&r.sizes)
	r.load.Note(r.packets, 0, r.trains, r.now)
	if r.marks > 0 {
		r.lane.Stats.RxMarks.Add(uint64(r.marks))
	}
	r.packets, r.bytes, r.trains, r.runs, r.marks, r.sizes = 0, 0, 0, 0, 0, lane.RunSizes{}
}

// handleQuantum handles a quantum of the waiting elements, sparse elements first.
func (r *Receiver) handleQuantum() {
	r.reportBacklog()
	for bytes := 0; bytes < lane.Quantum; {
		bytes += r.fillAhead(lane.Quantum - bytes)
		r.offerReceive()
		e := r.ahead.next()
		if e == nil {
			return
		}
		bytes += e.N
		if r.collectAhead(e) {
			r.release(&e.element)
			continue
		}
		r.handleElement(&e.element)
		e.element = element{} // its peer may be removed before the slot is used again
	}
}

// handleElement handles one element, or keeps a copy for openSingles. It releases the buffer.
func (r *Receiver) handleElement(e *element) {
	if r.collect(e) {
		return
	}
	r.openSingles()
	r.handleDatagrams(e)
	r.release(e)
	r.FlushIfFull()
}

// release releases the buffer of an element that was delivered, if it has one.
func (r *Receiver) release(e *element) {
	if e.buffer != nil {
		r.queue.buffers.Release(e.buffer)
	}
	*e = element{} // its peer may be removed before the memory is used again
}

// handleDatagrams splits coalesced datagrams into messages. Consecutive data messages of one session are opened together.
func (r *Receiver) handleDatagrams(e *element) {
	d := &e.Datagrams
	if d.Truncated {
		r.drop(drop.RXTruncated, max(session.Messages(d.N, d.SegSize), 1)) // counted by the part that fits
		return
	}
	if d.N == 0 {
		r.drop(drop.RXTooShort, 1)
	}
	size := d.SegSize
	if size <= 0 {
		size = d.N
	}
	for rest := d.Buf[e.skip:d.N]; len(rest) > 0; {
		msg := rest[:min(size, len(rest))]
		kind, reason := wire.Classify(msg)
		switch {
		case reason != drop.None:
			r.drop(reason, 1)
			rest = rest[len(msg):]
		case kind == wire.TypeData:
			run := dataRun(rest, size)
			if e.Mark { // this message only
				run = msg
			}
			r.openRun(run, size, e)
			e.Mark = false
			rest = rest[len(run):]
		default:
			r.drop(r.lane.Shared.Control.Handshake(msg, d.From), 1)
			rest = rest[len(msg):]
		}
	}
}

// dataRun returns the longest prefix of buf whose data messages all have the receiver index of the first. Type and receiver
// index are the first eight bytes of each message.
func dataRun(buf []byte, size int) []byte {
	head := binary.LittleEndian.Uint64(buf)
	end := min(size, len(buf))
	for end < len(buf) {
		next := buf[end:min(end+size, len(buf))]
		if len(next) < wire.DataOverhead || binary.LittleEndian.Uint64(next) != head {
			break
		}
		end += len(next)
	}
	return buf[:end]
}

// openRun decrypts a run of data messages for one receiver index, part of e, and passes the packets to the merger.
func (r *Receiver) openRun(run []byte, size int, e *element) {
	s, _ := r.lane.Shared.Sessions.Lookup(wire.ReceiverIndex(run))
	var keys *session.Keypair
	if s != nil {
		keys = s.Keys.Load()
	}
	if keys == nil {
		r.drop(drop.RXUnknownIndex, session.Messages(len(run), size))
		return
	}
	n := keys.OpenTrain(&r.scratch, r.now, run, size, r.opened)
	r.deliverOpened(s, keys, run, size, r.opened[:n], 0, e)
}

// deliverOpened delivers the messages of an opened run, part of e. See Sink.Deliver for checksumOK.
func (r *Receiver) deliverOpened(s *lane.Session, keys *session.Keypair, run []byte, size int, opened []session.Message, checksumOK uint64, e *element) {
	e.Newest = lastCounter(run, size, opened)
	if r.orders.Concerns(keys) {
		r.orders.DeliverRun(r.now, s, keys, run, size, opened, checksumOK, &e.Origin)
		return
	}
	r.Deliver(s, keys, opened, checksumOK, &e.Origin)
}

// lastCounter returns the counter of the last message of a run that was accepted; 0 if there is none.
func lastCounter(run []byte, size int, opened []session.Message) uint64 {
	for i := len(opened) - 1; i >= 0; i-- {
		if opened[i].Drop == drop.None {
			return wire.Counter(run[i*size:])
		}
	}
	return 0
}

// FlushIfFull writes the merged packets to the TUN if they fill a train; it implements Sink.
func (r *Receiver) FlushIfFull() {
	if r.merged >= flushThreshold {
		r.flush()
	}
}

// flush writes the merged packets to the TUN, after it has opened what waits for that.
func (r *Receiver) flush() {
	r.openSingles()
	// The error adds nothing to the count: the kernel rejects packets only if the queue is full or closed.
	failed, _ := r.merger.Flush(r)
	r.drop(drop.RXTUNWrite, failed)
	r.merged = 0
	r.queue.recycle()
}

// WriteTrain writes one merged train to the TUN; it implements offload.Sink.
func (r *Receiver) WriteTrain(parts [][]byte) error {
	r.trains++
	return r.lane.Queue.Write(parts)
}

func (r *Receiver) drop(reason drop.Reason, n int) { r.lane.Stats.Drops.Add(reason, n) }
