// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive/order"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// arrived returns a datagram of n bytes for a receiver index, from a host's port.
func arrived(host byte, port uint16, index uint32, n int) underlay.Datagrams {
	d := underlay.Datagrams{Buf: make([]byte, max(n, 8)), N: n}
	d.From.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), port)
	d.Buf[0] = byte(wire.TypeData)
	binary.LittleEndian.PutUint32(d.Buf[4:], index)
	return d
}

// put places n copies of a run of datagrams for the next receive call.
func (r *rig) put(i int, from underlay.Endpoint, mark byte, packets int) {
	var plain [][]byte
	for range packets {
		plain = append(plain, lanetest.In4.UDP(append(make([]byte, 1299), mark)))
	}
	run, size := r.Seal(plain...)
	r.arriveFrom(i, from, run, size)
	r.rx.in[i].ECN = packet.NotECT
}

// separate gives the receive queue a seed by which the peer's flows of two ports have a bucket each, as by all but one seed in rxFlows.
func (r *rig) separate(a, b uint16) {
	q := &r.rx.queue
	bucket := func(port uint16) uint64 { return maphash.Comparable(q.seed, receivedFlow(r.Peer, port)) % rxFlows }
	for bucket(a) == bucket(b) {
		q.seed = maphash.MakeSeed()
	}
}

// separateFrom gives the receive queue a seed by which the first flow of the rig's peer has a bucket that no flow of other has.
func (r *rig) separateFrom(other *lane.Peer) {
	q := &r.rx.queue
	bucket := func(f flowKey) uint64 { return maphash.Comparable(q.seed, f) % rxFlows }
	collides := func() bool {
		for port := range uint16(1 + rxPeerFlows) {
			if bucket(flowKey{other, port}) == bucket(flowKey{peer: r.Peer}) {
				return true
			}
		}
		return false
	}
	for collides() {
		q.seed = maphash.MakeSeed()
	}
}

// marks returns the last byte of each delivered packet, without repetitions.
func (r *rig) marks() string {
	order := ""
	for _, p := range lanetest.PacketsOf(r.TB, r.Delivered()...) {
		if mark := string(p[len(p)-1:]); !strings.HasSuffix(order, mark) {
			order += mark
		}
	}
	return order
}

// TestReceiveQueueKeepsFlowOrderWithoutLoss receives trains and single packets of several sources at random, more at a time than the
// lane opens, with and without workers.
func TestReceiveQueueKeepsFlowOrderWithoutLoss(t *testing.T) {
	for name, r := range map[string]*rig{"alone": newRig(t), "workers": newHastyRig(t, lanetest.ManyWorkers())} {
		r.Peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1015})
		random := rand.New(rand.NewPCG(1, 2))
		next, want, last, passed := [16]uint32{}, 0, [16]uint32{}, false
		check := func() {
			before := uint32(0)
			for _, p := range lanetest.PacketsOf(t, r.Delivered()...) {
				port, number, order := p[28], binary.LittleEndian.Uint32(p[29:]), binary.LittleEndian.Uint32(p[33:])
				if number != last[port]+1 {
					t.Fatalf("%s: packet %d of source %d came after %d", name, number, port, last[port])
				}
				last[port] = number
				passed = passed || order < before
				before = order
				want--
			}
		}
		for range 300 {
			n := random.IntN(len(r.rx.in) / 4)
			for i := range n {
				port := random.IntN(16)
				var plain [][]byte
				for range []int{1, 1, 2, 45}[random.IntN(4)] {
					next[port]++
					body := make([]byte, 1300)
					body[0] = byte(port)
					binary.LittleEndian.PutUint32(body[1:], next[port])
					binary.LittleEndian.PutUint32(body[5:], uint32(want))
					plain = append(plain, lanetest.Marked(lanetest.In4.UDP(body), packet.ECT0))
					want++
				}
				run, size := r.Seal(plain...)
				r.arriveFrom(i, lanetest.FromPort(1000+uint16(port)), run, size)
				r.rx.in[i].ECN = packet.ECT0 // a standing queue is marked, nothing is dropped
			}
			r.rx.handleReceived(n)
			check()
		}
		r.rx.batch(0)
		check()
		if want != 0 || r.AllDrops() != 0 {
			t.Errorf("%s: %d packets are missing, %d were dropped", name, want, r.AllDrops())
		}
		if !passed {
			t.Errorf("%s: no packet passed one of another source", name)
		}
		if used := r.rx.queue.buffers.Used; used != 0 {
			t.Errorf("%s: %d bytes of buffers are in use by an empty queue", name, used)
		}
		for i := range r.rx.ahead.jobs {
			if a := &r.rx.ahead.jobs[i]; a.flow.peer != nil || a.buffer != nil || a.session != nil {
				t.Errorf("%s: slot %d refers to a handled element", name, i)
			}
		}
	}
}

// waves is a Receiver that returns the next batch on every call.
type waves struct {
	batches [][]underlay.Datagrams
}

// TryRecv is underlay.Lane's.
func (a *waves) TryRecv(rx []underlay.Datagrams) int {
	if len(a.batches) == 0 {
		return 0
	}
	for i, d := range a.batches[0] {
		buf := rx[i].Buf
		copy(buf, d.Buf)
		rx[i], rx[i].Buf = d, buf
	}
	n := len(a.batches[0])
	a.batches = a.batches[1:]
	return n
}

// Recv implements underlay.Receiver.
func (a *waves) Recv(rx []underlay.Datagrams) (int, error) {
	if n := a.TryRecv(rx); n > 0 {
		return n, nil
	}
	return 0, net.ErrClosed
}

func TestSparsePacketsPassRemainingBulk(t *testing.T) {
	r := newRig(t)
	element := func(port uint16, mark byte, packets int) underlay.Datagrams {
		r.put(0, lanetest.FromPort(port), mark, packets)
		d := r.rx.in[0]
		d.Buf = bytes.Clone(d.Buf)
		return d
	}
	const trains = 47 // a quantum holds one of them, and a part of the second
	in := &waves{batches: [][]underlay.Datagrams{
		{element(1000, 'a', trains), element(1000, 'b', trains), element(1000, 'c', trains), element(1000, 'd', 1)},
		{element(1001, 'p', 1)},
	}}
	r.Peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1001})
	r.separate(1000, 1001)
	r.rx.Run(in, in.TryRecv, nil)
	if got := r.marks(); got != "abpcd" {
		t.Errorf("the TUN was given %s, want abpcd", got)
	}
	if r.AllDrops() != 0 {
		t.Errorf("%d packets were dropped", r.AllDrops())
	}
}

// roamingPath is a SlowPath that moves the endpoint on every Roam.
type roamingPath struct {
	lanetest.Owner
	peer *lane.Peer
}

func (m *roamingPath) Roam(from underlay.Endpoint) { m.peer.Endpoint.Store(&from) }

func TestOvertakenMessagesDoNotMoveEndpoint(t *testing.T) {
	at := func(addr string, port uint16) underlay.Endpoint {
		return underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), port), Src: lanetest.There.Src}
	}
	for _, tt := range []struct {
		name        string
		older, last underlay.Endpoint
		want        underlay.Endpoint
		order       string
	}{
		{"source ports", at("192.0.2.2", 61000), at("192.0.2.2", 61001), lanetest.There, "olo"},
		{"another address", lanetest.There, at("198.51.100.7", 51820), at("198.51.100.7", 51820), "ol"},
		{"another port of a NAT", lanetest.There, at("192.0.2.2", 9), at("192.0.2.2", 9), "ol"},
		{"another address, and back", at("198.51.100.7", 51820), lanetest.There, lanetest.There, "ol"},
		{"another address by a source port, and back", at("198.51.100.7", 61000), lanetest.There, lanetest.There, "olo"},
	} {
		r := newRig(t)
		r.Peer.SlowPath = &roamingPath{peer: r.Peer}
		r.Peer.Gathered.Store(&spread.Ports{First: 61000, Last: 61999})
		if tt.order == "olo" {
			r.separate(tt.older.Dst.Port(), tt.last.Dst.Port())
		}
		r.put(0, tt.older, 'o', 45)
		r.put(1, tt.older, 'o', 45)
		r.put(2, tt.last, 'l', 45)
		r.rx.batch(3)
		if order := r.marks(); order != tt.order {
			t.Errorf("%s: delivered in the order %s, want %s", tt.name, order, tt.order)
		}
		if got := r.Peer.Endpoint.Load(); *got != tt.want {
			t.Errorf("%s: the peer is at %v, want %v", tt.name, got.Dst, tt.want.Dst)
		}
	}
}

// TestForgedCounterDoesNotMoveEndpoint receives a delayed message from another endpoint, together with a forgery that has a later counter.
func TestForgedCounterDoesNotMoveEndpoint(t *testing.T) {
	r := newRig(t)
	delayed, size := r.Seal(lanetest.In4.UDP(make([]byte, 100)))
	for range 64 {
		r.Receive(r.Seal(lanetest.In4.UDP(make([]byte, 100))))
	}
	forged := bytes.Clone(delayed)
	binary.LittleEndian.PutUint64(forged[8:], 1<<32)
	r.ReceiveFrom(lanetest.FromPort(9), append(delayed, forged...), size)
	if len(r.Owner.Roams) != 0 || r.Drops(drop.RXAuth) != 1 {
		t.Errorf("the peer moved %d times with %d forgeries, want 0 and 1", len(r.Owner.Roams), r.Drops(drop.RXAuth))
	}
	next, size := r.Seal(lanetest.In4.UDP(make([]byte, 100)))
	forged = bytes.Clone(next)
	binary.LittleEndian.PutUint64(forged[8:], 0)
	r.ReceiveFrom(lanetest.FromPort(9), append(next, forged...), size)
	if len(r.Owner.Roams) != 1 {
		t.Errorf("the peer moved %d times, want 1", len(r.Owner.Roams))
	}
}

func TestFullReceiveQueueDropsFromFattestFlow(t *testing.T) {
	r := newRig(t)
	r.Peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1001})
	const each = 45
	sent, arrivals := 0, rxBytes/65536
	for range arrivals { // nothing is handled meanwhile: the lane is busy elsewhere
		r.put(0, lanetest.FromPort(1000), 'f', each)
		r.rx.admit(0)
		sent += each
	}
	r.put(0, lanetest.FromPort(1001), 's', 1)
	r.rx.admit(0)
	if used := r.rx.queue.buffers.Used; used > rxBytes+lane.MaxElement {
		t.Errorf("the queue takes %d bytes, want at most %d", used, rxBytes+lane.MaxElement)
	}
	r.rx.batch(0)
	got := map[byte]int{}
	for _, p := range lanetest.PacketsOf(t, r.Delivered()...) {
		got[p[len(p)-1]]++
	}
	if got['s'] != 1 {
		t.Errorf("%d of 1 packet of the sparse flow was delivered", got['s'])
	}
	if dropped := int(r.Drops(drop.RXQueueFull)); dropped == 0 || got['f']+dropped != sent {
		t.Errorf("of %d packets, %d were delivered and %d counted as dropped", sent, got['f'], dropped)
	}
}

// TestManyPortsTakeNoShareOfOtherPeers has a peer that announces all ports as its source ports, and sends from another one each time, far more than
// the lane can open. Another peer sends bulk from one port.
func TestManyPortsTakeNoShareOfOtherPeers(t *testing.T) {
	r := newRig(t)
	greedy, _ := r.NewPeer("10.0.0.9/32")
	_, theirs := r.NewSession(greedy, true)
	greedy.Gathered.Store(&spread.Ports{First: 1, Last: 65535})
	r.separateFrom(greedy)
	const begin, rounds, packets, every = 20, 40, 10, 16 // at the beginning each flow is a sparse one
	from := flow.Ends{Src: netip.MustParseAddrPort("10.0.0.9:5"), Dst: lanetest.Out4.Src}
	own, share := 0, 0
	for round := range rounds {
		for i := range Slots {
			if i%every == 0 {
				r.put(i, lanetest.There, 'b', packets)
				continue
			}
			var run []byte
			for range packets {
				run = append(run, r.Message(theirs, from.UDP(make([]byte, 1300)))...)
			}
			r.arriveFrom(i, lanetest.FromPort(1000+uint16(round*Slots+i)), run, len(run)/packets)
		}
		before, _ := greedy.Traffic()
		r.rx.handleReceived(Slots)
		after, _ := greedy.Traffic()
		opened := lanetest.PacketsOf(t, r.Delivered()...)
		if round < begin {
			continue
		}
		for _, p := range opened {
			if p[len(p)-1] == 'b' {
				own += len(p)
			}
		}
		share += int(after - before)
	}
	if own < share/2 {
		t.Errorf("%d bytes of the peer with one port were opened, and %d of the other", own, share)
	}
	r.rx.batch(0)
	if q := &r.rx.queue; len(q.peers) != 0 || q.messages != 0 {
		t.Errorf("an empty queue has %d peers and %d messages", len(q.peers), q.messages)
	}
}

// TestReceiveQueueLeavesMemoryToOtherLanes fills a queue with trains that take buffers of three times their size: their bytes alone do not
// reach the limit.
func TestReceiveQueueLeavesMemoryToOtherLanes(t *testing.T) {
	r := newRig(t)
	for i := 0; r.Drops(drop.RXQueueFull) == 0; i++ {
		if i == rxBytes/lane.MaxElement {
			t.Fatalf("one lane takes %d bytes, all that there is", r.rx.queue.buffers.Used)
		}
		r.put(0, lanetest.There, 'f', 15)
		r.rx.admit(0)
	}
	if used := r.rx.queue.buffers.Used; used < rxBytes/2 {
		t.Errorf("the only busy lane may take %d bytes, want at least half of %d", used, rxBytes)
	}
	r.rx.batch(0)
	if left := r.budget.bytes.Left.Load(); left != rxBytes-2*rxReserve {
		t.Errorf("an empty queue leaves %d bytes to other lanes, want %d", left, rxBytes-2*rxReserve)
	}
}

func TestReceiverThatEndsReturnsItsMemory(t *testing.T) {
	r := newRig(t)
	b := &r.budget.bytes
	b.Reserve = 0 // as with very many lanes: a queue keeps a chunk even when it is empty
	want := b.Left.Load()
	for range 2 * rxBytesChunk / lane.MaxElement {
		r.put(0, lanetest.There, 'f', 45)
		r.rx.admit(0)
	}
	if b.Left.Load() >= want {
		t.Fatal("the queue takes nothing from the budget")
	}
	r.rx.Run(&source{tb: t, random: rand.New(rand.NewPCG(1, 1))}, nil, nil)
	if left := b.Left.Load(); left != want {
		t.Errorf("%d bytes are left after the end, want %d", left, want)
	}
}

// TestWaitingMessagesAreNoReplays fills the queue with small messages of one source. One of another passes them.
func TestWaitingMessagesAreNoReplays(t *testing.T) {
	r := newRig(t)
	r.Peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1001})
	sent := 0
	for r.Drops(drop.RXQueueFull) == 0 {
		run, size := r.Seal(slices.Repeat([][]byte{lanetest.In4.UDP(make([]byte, 100))}, underlay.MaxCoalesced)...)
		r.arriveFrom(0, lanetest.FromPort(1000), run, size)
		r.rx.in[0].ECN = packet.ECT0
		r.rx.admit(0)
		sent += underlay.MaxCoalesced
	}
	r.put(0, lanetest.FromPort(1001), 's', 1)
	r.rx.admit(0)
	r.rx.batch(0)
	if replays := r.Drops(drop.RXReplay); replays != 0 {
		t.Errorf("%d of %d messages waited until they were refused as replays", replays, sent)
	}
	if got, want := len(lanetest.PacketsOf(t, r.Delivered()...)), sent+1-int(r.Drops(drop.RXQueueFull)); got != want {
		t.Errorf("got %d packets, want %d", got, want)
	}
	if n := r.rx.queue.messages; n != 0 {
		t.Errorf("an empty queue counts %d messages", n)
	}
}

// standing keeps 30 trains in the queue for half a second of the rig's time, and returns the number of packets that came and of those delivered.
func (r *rig) standing(ecn packet.ECN) (sent int, delivered [][]byte) {
	const each = 45
	for step := range 250 {
		n := 2 // as many as the lane opens per call
		if step == 0 {
			n = 30
		}
		for i := range n {
			var plain [][]byte
			for range each {
				plain = append(plain, lanetest.Marked(lanetest.In4.UDP(make([]byte, 1300)), ecn))
			}
			run, size := r.Seal(plain...)
			r.arriveFrom(i, lanetest.There, run, size)
			r.rx.in[i].ECN = ecn
			sent += each
		}
		r.Now += int64(2 * time.Millisecond)
		r.rx.handleReceived(n)
		if step == 249 {
			r.rx.batch(0)
		}
		delivered = append(delivered, lanetest.PacketsOf(r.TB, r.Delivered()...)...)
	}
	return sent, delivered
}

func TestStandingQueueDropsSinglePackets(t *testing.T) {
	r := newRig(t)
	sent, delivered := r.standing(packet.NotECT)
	dropped := int(r.Drops(drop.RXCongestion))
	if dropped < 2 || dropped > 50 || len(delivered)+dropped != sent {
		t.Errorf("of %d packets, %d were delivered and %d dropped as congestion signals", sent, len(delivered), dropped)
	}
	if all := int(r.AllDrops()); all != dropped {
		t.Errorf("%d packets were dropped for other reasons", all-dropped)
	}
	if n := r.rx.queue.messages; n != 0 {
		t.Errorf("an empty queue counts %d messages", n)
	}
}

func TestStandingQueueMarksECNCapablePackets(t *testing.T) {
	r := newRig(t)
	sent, delivered := r.standing(packet.ECT0)
	ce := 0
	for _, p := range delivered {
		if packet.ECNOf(p) == packet.CE {
			ce++
		}
	}
	if len(delivered) != sent || ce < 2 || ce > 50 {
		t.Errorf("of %d packets, %d were delivered, %d with a mark", sent, len(delivered), ce)
	}
	if counted := r.Lane.Snapshot().RxMarks; counted != uint64(ce) {
		t.Errorf("%d marks are counted, want %d", counted, ce)
	}
}

// TestUnmarkablePacketIsDroppedAsSignal signals on a train whose outer headers announce ECN, and whose packets do not.
func TestUnmarkablePacketIsDroppedAsSignal(t *testing.T) {
	for _, outer := range []packet.ECN{packet.ECT0, packet.ECT1, packet.CE} {
		r := newRig(t)
		plain := lanetest.In6.UDP(make([]byte, 100))
		plain[1] = byte(packet.NotECT)
		run, size := r.Seal(plain, plain)
		e := element{Origin: order.Origin{Datagrams: underlay.Datagrams{Buf: run, N: len(run), SegSize: size, From: lanetest.There, ECN: outer}}}
		if r.rx.signal(&e) {
			t.Fatalf("outer ECN %v: signal released a train of two messages", outer)
		}
		r.rx.handleElement(&e)
		r.rx.flush()
		r.rx.publish()
		delivered, dropped := len(lanetest.PacketsOf(t, r.Delivered()...)), r.Drops(drop.RXCongestion)
		if marks := r.Lane.Snapshot().RxMarks; delivered != 1 || dropped != 1 || marks != 0 {
			t.Errorf("outer ECN %v: %d packets were delivered, %d dropped, %d counted as marked; want 1, 1, 0", outer, delivered, dropped, marks)
		}
	}
}

// TestSignalsLeaveHandshakeMessages signals on a train until its handshake message is the first one, and once more: GRO appends a
// shorter datagram to a train.
func TestSignalsLeaveHandshakeMessages(t *testing.T) {
	for _, outer := range []packet.ECN{packet.NotECT, packet.ECT0} {
		r := newRig(t)
		plain := lanetest.In4.UDP(make([]byte, 300))
		plain[1] = byte(packet.NotECT)
		run, size := r.Seal(plain, plain)
		run = append(run, byte(wire.TypeInitiation), 0, 0, 0)
		run = append(run, make([]byte, wire.InitiationSize-4)...)
		e := element{Origin: order.Origin{Datagrams: underlay.Datagrams{Buf: run, N: len(run), SegSize: size, From: lanetest.There}}}
		signals := []packet.ECN{packet.NotECT, packet.NotECT, outer}
		for i, ecn := range signals {
			e.ECN = ecn
			if r.rx.signal(&e) {
				t.Fatalf("signal %d released a train that has a handshake message", i)
			}
		}
		r.rx.handleElement(&e)
		r.rx.flush()
		r.rx.publish()
		if n, dropped := len(r.Control.Messages), r.AllDrops(); n != 1 || dropped != 2 {
			t.Errorf("outer ECN %v: got %d handshake messages and %d drops, want 1 and 2", outer, n, dropped)
		}
	}
}

func TestHandshakeMessagesPassTheReceiveQueue(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.put(i, lanetest.There, 'b', 45)
	}
	r.arriveFrom(3, lanetest.There, append([]byte{byte(wire.TypeInitiation), 0, 0, 0}, make([]byte, wire.InitiationSize-4)...), wire.InitiationSize)
	r.rx.handleReceived(4)
	if len(r.Control.Messages) != 1 || r.rx.idle() {
		t.Errorf("got %d handshake messages while bulk waits (%v), want 1", len(r.Control.Messages), !r.rx.idle())
	}
	r.rx.batch(0)
	if n := len(lanetest.PacketsOf(t, r.Delivered()...)); n != 3*45 {
		t.Errorf("got %d packets, want %d", n, 3*45)
	}
}

// TestDataBehindHandshakeKeepsFlowOrder has a train that begins with a handshake message: GRO adds a shorter datagram to one.
func TestDataBehindHandshakeKeepsFlowOrder(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.put(i, lanetest.There, 'b', 45)
	}
	initiation := append([]byte{byte(wire.TypeInitiation), 0, 0, 0}, make([]byte, wire.InitiationSize-4)...)
	data, _ := r.Seal(lanetest.In4.UDP([]byte("z")))
	r.arriveFrom(3, lanetest.There, append(initiation, data...), wire.InitiationSize)
	r.rx.in[3].ECN = packet.NotECT
	r.rx.handleReceived(4)
	if len(r.Control.Messages) != 1 {
		t.Errorf("got %d handshake messages while bulk waits, want 1", len(r.Control.Messages))
	}
	r.rx.batch(0)
	if got := r.marks(); got != "bz" {
		t.Errorf("the TUN was given %s, want bz", got)
	}
	if n := r.rx.queue.messages; n != 0 || r.AllDrops() != 0 {
		t.Errorf("an empty queue counts %d messages, and %d were dropped", n, r.AllDrops())
	}
}

// TestManySparseFlowsDoNotDelayReading has more sparse flows than the lane opens before it reads its socket again.
func TestManySparseFlowsDoNotDelayReading(t *testing.T) {
	r := newRig(t)
	r.Peer.Gathered.Store(&spread.Ports{First: 1000, Last: 1063})
	const flows, packets = 40, 10
	for i := range flows {
		r.put(i, lanetest.FromPort(1000+uint16(i)), 's', packets)
	}
	size := r.rx.in[0].N
	r.rx.handleReceived(flows)
	for left := flows * packets; left > 0; r.rx.handleReceived(0) {
		n := len(lanetest.PacketsOf(t, r.Delivered()...))
		if n == 0 || n/packets*size > lane.Quantum+size {
			t.Fatalf("%d bytes were opened in one turn, want at most %d", n/packets*size, lane.Quantum+size)
		}
		left -= n
	}
}

// TestSparseFlowsDoNotStarveBulk receives as many datagrams from new sources as fit each receive call, as an attacker with spoofed
// addresses sends.
func TestSparseFlowsDoNotStarveBulk(t *testing.T) {
	r := newRig(t)
	const bulk, packets = 16, 45
	for i := range bulk {
		r.put(i, lanetest.There, 'b', packets)
	}
	r.rx.handleReceived(bulk)
	opened := len(lanetest.PacketsOf(t, r.Delivered()...))
	arrivals := bulk
	for opened < bulk*packets {
		for i := range r.rx.in {
			d := arrived(9, uint16(arrivals), 77, wire.DataOverhead)
			r.arriveFrom(i, d.From, d.Buf, d.N)
			arrivals++
		}
		r.rx.handleReceived(len(r.rx.in))
		n := len(lanetest.PacketsOf(t, r.Delivered()...))
		if n < packets {
			t.Fatalf("%d packets were opened after %d", n, opened)
		}
		opened += n
	}
	r.rx.batch(0)
	if runs := r.Lane.Stats.Rx.Runs.Load(); runs != uint64(arrivals) {
		t.Errorf("counted %d datagrams, want %d", runs, arrivals)
	}
	if got := r.Drops(drop.RXUnknownIndex); int(got) != arrivals-bulk {
		t.Errorf("%d of %d forgeries were dropped", got, arrivals-bulk)
	}
}

// closing is a Receiver that is closed while datagrams wait in the queue.
type closing struct{ waves }

// TryRecv is underlay.Lane's.
func (*closing) TryRecv([]underlay.Datagrams) int { return 0 }

func TestReceivedPacketsAreHandledAfterPortCloses(t *testing.T) {
	r := newRig(t)
	var batch []underlay.Datagrams
	for k := range 9 {
		var plain [][]byte
		for range 20 {
			plain = append(plain, lanetest.In4.UDP(append(make([]byte, 1299), byte(k))))
		}
		run, size := r.Seal(plain...)
		batch = append(batch, underlay.Datagrams{Buf: run, N: len(run), SegSize: size, From: lanetest.There})
	}
	in := &closing{waves{batches: [][]underlay.Datagrams{batch}}}
	r.rx.Run(in, in.TryRecv, nil)
	if n := len(lanetest.PacketsOf(t, r.Delivered()...)); n != 180 {
		t.Errorf("%d of 180 packets were delivered", n)
	}
}
