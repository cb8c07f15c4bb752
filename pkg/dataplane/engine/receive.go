// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// rxSlots is the number of elements that one receive call returns.
	rxSlots = 64
	// rxTrains bounds them until so many small ones wait: the others then have no memory, and the trains stay in the cache.
	rxTrains = 16
	// maxRunMessages is the largest number of messages in a 64 KiB receive buffer: each has at least 32 bytes.
	maxRunMessages = 65536 / wire.DataOverhead
	// bulkThreshold is the size of a received run, in bytes, from which it is bulk: opening it is worth the help of a worker.
	bulkThreshold = 16 << 10
	// flushThreshold is the number of bytes from which the lane writes what it has merged: they fill a train, and are in the cache.
	// With less, the rest of a train that needed two sends is still to come.
	flushThreshold = 63 << 10
	// quantum is the number of bytes that the lane opens before it receives again: some 50 µs of work.
	quantum = 64 << 10
)

// receiver is the receive direction of one lane, used by one goroutine.
type receiver struct {
	lane     *lane
	in       []underlay.Datagrams // of the last receive call
	buffers  []*buffer            // of in
	slots    int                  // of in, for the next receive call
	queue    rxQueue
	orders   orders
	observed *flowTable // while messages of a run are delivered and flows are observed
	opened   []session.Message
	scratch  session.Scratch
	merger   *offload.Merger
	routes   routeCache
	ahead    lookahead
	recv     receiveJob
	now      int64
	packets  int // since publish last updated the counters
	bytes    int
	trains   int
	runs     int
	merged   int // bytes in merger
	marks    int // messages marked as congested
	sizes    RunSizes
	load     workload
}

// newReceiver returns a receiver that receives n elements at a time.
func newReceiver(l *lane, n int) *receiver {
	r := &receiver{
		lane:    l,
		in:      make([]underlay.Datagrams, n),
		buffers: make([]*buffer, n),
		opened:  make([]session.Message, maxRunMessages),
		merger:  offload.NewMerger(l.engine.cfg.Device.Features().USO),
	}
	r.setSlots(min(n, rxTrains))
	r.queue = newRXQueue(r, &l.engine.rxBudget)
	return r
}

// setSlots sets the number of elements of the next receive call. Buffers are allocated when they are first needed.
func (r *receiver) setSlots(n int) {
	r.slots = n
	for i := n - 1; i >= 0 && r.buffers[i] == nil; i-- {
		r.buffers[i] = newBuffer(receiveClass, i)
		r.in[i].Buf = r.buffers[i].bytes
	}
}

// ownReceiver returns the lane's receiver, which receives n elements at a time. It outlives ports: at the end of one it is empty. A new one for
// each port would leave its buffers to the garbage collector.
func (l *lane) ownReceiver(n int) *receiver {
	if l.receiver == nil {
		l.receiver = newReceiver(l, n)
	}
	return l.receiver
}

// receive moves packets from the underlay to the TUN queue until conn is closed.
func (l *lane) receive(conn underlay.Lane, yield func(bool)) {
	r := l.ownReceiver(rxSlots)
	r.load.yield = yield
	r.run(conn, conn.TryRecv)
}

// run receives from conn until it is closed. tryRecv receives without blocking; nil if that does not pay.
func (r *receiver) run(conn underlay.Receiver, tryRecv func([]underlay.Datagrams) int) {
	defer r.queue.close()
	defer r.orders.close()
	r.recv.tryRecv = tryRecv
	for {
		n, err := r.next(conn)
		switch {
		case err == nil:
			r.handleReceived(n)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			r.drop(drop.RXReceive, 1)
			time.Sleep(errorPause)
		}
	}
}

// next receives elements into r.in, or takes those that a worker has received. It blocks if no element waits.
func (r *receiver) next(conn underlay.Receiver) (n int, err error) {
	n, ok := r.takeReceived()
	switch {
	case ok:
	case r.idle() && !r.orders.waiting():
		r.lane.stats.rx.progress.rest()
		r.orders.sleep()
		n, err = conn.Recv(r.in[:r.slots])
		r.orders.wake()
	case r.recv.tryRecv != nil:
		n = r.recv.tryRecv(r.in[:r.slots])
	}
	if n == 0 && err == nil && r.idle() && r.orders.waiting() {
		time.Sleep(orderPause)
	}
	return n, err
}

// idle reports whether no received element waits.
func (r *receiver) idle() bool { return r.queue.Len() == 0 && r.ahead.empty() }

// handleReceived takes the first n elements of in, and handles a quantum of what waits. Without a backlog it handles them where they are.
func (r *receiver) handleReceived(n int) {
	r.lane.stats.rx.progress.work()
	r.now = r.lane.engine.cfg.Clock()
	bytes := 0
	for i := range n {
		bytes += r.in[i].N
		r.sizes.noteBytes(r.in[i].N, r.in[i].SegSize)
	}
	r.runs += n
	switch {
	case bytes > n*tun.BigTrain:
		r.setSlots(min(len(r.in), rxTrains))
	case n == r.slots:
		r.setSlots(len(r.in))
	}
	if r.idle() && bytes <= quantum {
		for i := range n {
			r.handleElement(&element{Datagrams: r.in[i]})
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
	if len(r.orders.list) > 0 {
		r.tendOrders()
	}
	r.flush()
	r.publish()
}

// publish updates the counters that others read.
func (r *receiver) publish() {
	r.lane.stats.rx.add(r.packets, r.bytes, r.trains, r.runs)
	r.lane.stats.rx.sizes.publish(&r.sizes)
	r.load.note(r.packets, 0, r.trains, r.now)
	if r.marks > 0 {
		r.lane.stats.rxMarks.Add(uint64(r.marks))
	}
	r.packets, r.bytes, r.trains, r.runs, r.marks, r.sizes = 0, 0, 0, 0, 0, RunSizes{}
}

// handleQuantum handles a quantum of what waits, sparse elements first.
func (r *receiver) handleQuantum() {
	r.reportBacklog()
	for bytes := 0; bytes < quantum; {
		bytes += r.fillAhead(quantum - bytes)
		r.offerReceive()
		e := r.ahead.next()
		if e == nil {
			return
		}
		bytes += e.N
		if !r.collectAhead(e) {
			r.handleElement(&e.element)
		}
		r.queue.buffers.release(e.buffer)
		e.element = element{} // its peer may be removed before the slot is used again
	}
}

// handleElement handles one element.
func (r *receiver) handleElement(e *element) {
	r.handleDatagrams(e)
	r.flushIfFull()
}

// handleDatagrams splits coalesced datagrams into messages. Consecutive data messages of one session are opened together.
func (r *receiver) handleDatagrams(e *element) {
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
			if e.mark { // this message only
				run = msg
			}
			r.openRun(run, size, e)
			e.mark = false
			rest = rest[len(run):]
		default:
			r.drop(r.lane.engine.cfg.Control.Handshake(msg, d.From), 1)
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
func (r *receiver) openRun(run []byte, size int, e *element) {
	s, _ := r.lane.engine.Sessions.Lookup(wire.ReceiverIndex(run))
	var keys *session.Keypair
	if s != nil {
		keys = s.Keys.Load()
	}
	if keys == nil {
		r.drop(drop.RXUnknownIndex, session.Messages(len(run), size))
		return
	}
	n := keys.OpenTrain(&r.scratch, r.now, run, size, r.opened)
	e.newest = lastCounter(run, size, r.opened[:n])
	if r.ordinary(keys) {
		r.deliver(s, keys, r.opened[:n], 0, e)
		return
	}
	r.deliverRun(s, keys, run, size, r.opened[:n], 0, e)
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

// deliver passes on the decrypted messages of one run, part of e. Bit i of checksumOK means that the checksums of the packet
// in message i are correct.
func (r *receiver) deliver(s *Session, keys *session.Keypair, opened []session.Message, checksumOK uint64, e *element) {
	if len(opened) == 0 {
		return
	}
	r.observed = r.lane.rxFlows.take()
	authentic, refused, rejected, data, control := 0, 0, 0, false, false
	for i := range opened {
		m := &opened[i]
		if m.Drop != drop.None {
			r.drop(m.Drop, 1)
			refused++
			continue
		}
		authentic += len(m.Padded) + wire.DataOverhead
		switch {
		case len(m.Padded) == 0:
		case wire.IsControl(m.Padded):
			control = true
			if !r.deliverControl(m.Padded, s.Peer, keys, e) {
				rejected++
			}
		case keys.Restricted():
			data = true // which wants a keepalive all the same: without, the peer would start one handshake after the other
			r.drop(drop.RXNotPostQuantum, 1)
			rejected++
		default:
			data = true
			if !r.deliverPacket(m.Padded, s.Peer, e, checksumOK>>i&1 != 0) {
				rejected++
			}
		}
	}
	r.lane.rxFlows.put(r.observed)
	r.observed = nil // the lane may be idle for long, and the table has addresses of users
	count := s.Peer.trafficOf(r.lane.index)
	if refused+rejected > 0 {
		count.rxDrops.Add(uint64(refused + rejected))
	}
	if authentic > 0 {
		count.rx.Add(uint64(authentic))
		count.rxPackets.Add(uint64(len(opened) - refused))
		s.Peer.received(r.now, keys, len(opened)-refused, data, control, e)
	}
}

// deliverControl passes one decrypted control message of p, which arrived in e, to the slow path, or drops it.
func (r *receiver) deliverControl(plain []byte, p *Peer, keys *session.Keypair, e *element) bool {
	if wire.IsHello(plain) {
		keys.AgreeStreams(wire.AnnouncesOrder(plain))
	}
	var why drop.Reason
	if wire.IsKEMPart(plain) {
		why = p.SlowPath.ExchangePart(plain, keys)
	} else {
		why = p.SlowPath.Hello(plain, e.From)
	}
	if why != drop.None {
		r.drop(why, 1)
		return false
	}
	r.lane.stats.rxControl.Add(1)
	return true
}

// deliverPacket checks one decrypted packet of p, which arrived in e, and passes it to the merger, or drops it.
func (r *receiver) deliverPacket(plain []byte, p *Peer, e *element, checksumOK bool) bool {
	n, ok := packet.Length(plain)
	if !ok {
		r.drop(drop.RXInnerMalformed, 1)
		return false
	}
	plain = plain[:n]
	if r.routes.lookup(&r.lane.engine.Routes, packet.Source(plain)) != p {
		r.drop(drop.RXInnerSpoofed, 1)
		return false
	}
	delivered := r.mark(plain, e)
	if r.observed != nil {
		r.noteFlow(plain, p, e, delivered)
	}
	if !delivered {
		r.drop(drop.RXCongestion, 1)
		return false
	}
	r.packets++
	if isDatagram(plain) {
		r.load.datagrams++
	}
	r.bytes += n
	r.merged += n
	if checksumOK {
		r.merger.AddVerified(plain)
	} else {
		r.merger.Add(plain)
	}
	return true
}

// mark copies a congestion mark of the outer header to a packet (RFC 6040, section 4.2), or sets this host's own. A packet that
// cannot carry the mark of the outer header stays as it is, as in the in-kernel WireGuard. If a packet cannot carry this host's own mark,
// mark returns false and the packet must be dropped instead: the outer header announced ECN although the packet has none.
func (r *receiver) mark(plain []byte, e *element) bool {
	switch {
	case !e.mark && e.ECN != packet.CE:
		return true
	case packet.ECNOf(plain) == packet.NotECT:
		return !e.mark
	case e.mark:
		r.marks++
	}
	packet.SetCE(plain)
	return true
}

// received updates endpoint, session and timers after authentic messages under keys. A control message (wire.IsControl) may come from
// a source port that is not known yet, and the hello names the endpoint explicitly. So they do not update the endpoint here.
func (p *Peer) received(now int64, keys *session.Keypair, messages int, data, control bool, e *element) {
	p.noteSource(keys, e, messages, !control && !e.waited)
	if p.Unconfirmed.Load() == keys {
		p.SlowPath.Confirm(keys)
	}
	p.Activity.Received(now, data)
	if rekeyDue(keys, now, true) {
		p.SlowPath.Rekey()
	}
}

// flushIfFull writes the merged packets to the TUN if they fill a train.
func (r *receiver) flushIfFull() {
	if r.merged >= flushThreshold {
		r.flush()
	}
}

// flush writes the merged packets to the TUN.
func (r *receiver) flush() {
	// The error adds nothing to the count: the kernel rejects packets only if the queue is full or closed.
	failed, _ := r.merger.Flush(r)
	r.drop(drop.RXTUNWrite, failed)
	r.merged = 0
	r.queue.recycle()
}

// WriteTrain writes one merged train to the TUN; it implements offload.Sink.
func (r *receiver) WriteTrain(parts [][]byte) error {
	r.trains++
	return r.lane.queue.Write(parts)
}

func (r *receiver) drop(reason drop.Reason, n int) { r.lane.stats.drops.Add(reason, n) }
