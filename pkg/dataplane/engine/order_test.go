// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// ordering makes the rig's lane one that may wait.
func (r *rig) ordering() { r.rx.recv.tryRecv = func([]underlay.Datagrams) int { return 0 } }

// sealAs returns a message from the peer with a counter.
func (r *rig) sealAs(counter uint64, plain []byte) []byte {
	l := session.NewLayout(1, len(plain), len(plain), DefaultMTU)
	msg := make([]byte, l.Size())
	copy(msg[wire.DataHeaderLen:], plain)
	if r.remote.SealTrain(&r.scratch, msg, l, counter) != len(msg) {
		r.tb.Fatal("the peer cannot seal")
	}
	return msg
}

// stream is a flow that the rig's peer sprays. Each has another flow.
type stream struct {
	r     *rig
	first uint64
	plain [][]byte
}

func (r *rig) stream(n int) *stream {
	s, ok := r.remote.OpenStream()
	if !ok {
		r.tb.Fatal("no stream")
	}
	defer s.Close()
	first, _ := s.Reserve(1 << 30)
	st := &stream{r: r, first: first}
	number, _ := session.SplitStream(first)
	f := flow.Flow{Ends: flow.Ends{Src: netip.AddrPortFrom(in4.Src.Addr(), uint16(number)), Dst: in4.Dst}, ID: 1}
	for range n {
		st.plain = append(st.plain, f.Next(100)[offload.VnetHdrLen:])
	}
	return st
}

// arrive receives messages of the stream, each from its own port.
func (s *stream) arrive(numbers ...int) {
	for _, n := range numbers {
		msg := s.r.sealAs(s.first+uint64(n), s.plain[n%len(s.plain)])
		s.r.receive(msg, len(msg))
	}
}

// got returns the numbers of the packets that were delivered since the last call.
func (s *stream) got() (numbers []int) {
	for _, train := range s.r.delivered() {
		packets, err := flow.Packets(train)
		if err != nil {
			s.r.tb.Fatal(err)
		}
		for _, p := range packets {
			numbers = append(numbers, slices.IndexFunc(s.plain, func(q []byte) bool { return slices.Equal(p[40:], q[40:]) }))
		}
	}
	return numbers
}

func TestStreamIsDeliveredInOrder(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(8)
	s.arrive(0, 2, 3, 5)
	if got := s.got(); !slices.Equal(got, []int{0}) {
		t.Errorf("got %v before 1 arrived", got)
	}
	s.arrive(1)
	if got := s.got(); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("got %v when 1 arrived", got)
	}
	r.now += 2 * int64(spread.MaxOrderWait)
	r.rx.handleReceived(0)
	if got := s.got(); !slices.Equal(got, []int{5}) {
		t.Errorf("got %v when 4 was lost", got)
	}
	s.arrive(4)
	if got := s.got(); !slices.Equal(got, []int{4}) {
		t.Errorf("got %v when 4 was late", got)
	}
	want := OrderStats{Waited: 3, Late: 1, Skipped: 1}
	if got := r.engine.Stats().Lanes[0].RxOrder; got != want || r.rx.orders.waiting() || r.rx.orders.bytes != 0 {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// TestLongLossOfStreamIsCounted: more messages are lost than could wait.
func TestLongLossOfStreamIsCounted(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(1)
	s.arrive(0, 20000)
	r.now += 2 * int64(spread.MaxOrderWait)
	r.rx.handleReceived(0)
	want := OrderStats{Waited: 1, Skipped: 19999}
	if got := r.engine.Stats().Lanes[0].RxOrder; got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// TestOtherFlowsDoNotWaitForStream: only the messages of the stream do.
func TestOtherFlowsDoNotWaitForStream(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(2)
	early, udp := r.sealAs(s.first+1, s.plain[1]), in4.UDP(make([]byte, len(s.plain[0])-28))
	other, size := r.seal(udp)
	r.receive(slices.Concat(early, other, r.sealAs(s.first+3, s.plain[1])), size) // coalesced: they came from one port
	if got := r.delivered(); len(got) != 1 || !slices.Equal(got[0][offload.VnetHdrLen:], udp) {
		t.Errorf("%d trains were delivered, want that of the other flow", len(got))
	}
	if n := r.rx.orders.list[0].Waiting(); n != 2 {
		t.Errorf("%d messages wait, want 2", n)
	}
}

// TestReplayedMessagesOfStreamDoNotWait checks that one message cannot take the place of others.
func TestReplayedMessagesOfStreamDoNotWait(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(4)
	s.arrive(2, 2, 2)
	if n := r.drops(drop.RXReplay); n != 2 || r.rx.orders.list[0].Waiting() != 1 {
		t.Errorf("%d replays were dropped, %d messages wait", n, r.rx.orders.list[0].Waiting())
	}
}

// TestStreamAtSeveralLanesIsNotOrdered: each lane would wait for what the other has.
func TestStreamAtSeveralLanesIsNotOrdered(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(8)
	s.arrive(0, 2)
	r.keys.ClaimStream(0, 7)
	s.arrive(3, 6)
	if got := s.got(); !slices.Equal(got, []int{0, 2, 3, 6}) {
		t.Errorf("got %v", got)
	}
	if o := r.engine.Stats().Lanes[0].RxOrder; o.Unordered != 2 || len(r.rx.orders.list) != 0 {
		t.Errorf("counted %+v", o)
	}
}

// TestPeerCannotOccupyOrders has a peer that begins streams and sends their ends only.
func TestPeerCannotOccupyOrders(t *testing.T) {
	r := newRig(t)
	r.ordering()
	other, _ := r.newPeer("10.0.0.9/32")
	ours, theirs := r.newSession(other, true)
	st, _ := theirs.OpenStream()
	first, _ := st.Reserve(8)
	late := func(n uint64) {
		remote := r.remote
		r.remote = theirs
		msg := r.sealAs(first+n, flow.Ends{Src: mustPort("10.0.0.9:5"), Dst: out4.Src}.UDP([]byte{byte(n)}))
		r.remote = remote
		r.receive(msg, len(msg))
	}
	late(0)
	late(2)
	for range 3 * maxOrders {
		s := r.stream(1)
		s.arrive(7, 9000, 1<<29)
	}
	r.delivered()
	own := 0
	for _, o := range r.rx.orders.list {
		if o.keys != ours {
			own++
		}
	}
	if own > maxPeerOrders || r.rx.orders.bytes > maxWaitingBytes {
		t.Errorf("the peer has %d streams, and %d bytes wait", own, r.rx.orders.bytes)
	}
	late(1)
	if n := len(r.delivered()); n == 0 || r.engine.Stats().Lanes[0].RxOrder.Late != 0 {
		t.Errorf("%d trains of the other peer came out, late: %d", n, r.engine.Stats().Lanes[0].RxOrder.Late)
	}
}

// TestPeerMayHaveAllItsStreamsAtOneLane: a sender with many lanes has one for each.
func TestPeerMayHaveAllItsStreamsAtOneLane(t *testing.T) {
	r := newRig(t)
	r.ordering()
	var streams []*stream
	for range session.MaxOpenStreams {
		streams = append(streams, r.stream(4))
	}
	for _, numbers := range [][]int{{0}, {2}, {1}} {
		for _, s := range streams {
			s.arrive(numbers...)
		}
	}
	want := OrderStats{Waited: session.MaxOpenStreams}
	if got := r.engine.Stats().Lanes[0].RxOrder; got != want || r.rx.orders.waiting() {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// TestEmptyWaitingMessagesTakeMemory has a peer that sends a train of keepalives, which need next to no buffer.
func TestEmptyWaitingMessagesTakeMemory(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(0)
	var run []byte
	for n := range uint64(maxRunMessages) {
		run = append(run, r.sealAs(s.first+1+n, nil)...)
	}
	r.receive(run, wire.DataOverhead)
	if o := r.rx.orders.list[0]; o.Waiting() != maxRunMessages || r.rx.orders.bytes < maxRunMessages*waitingMessageBytes {
		t.Errorf("%d messages wait, with %d bytes", o.Waiting(), r.rx.orders.bytes)
	}
	r.now += 2 * int64(spread.MaxOrderWait)
	r.rx.handleReceived(0)
	if r.rx.orders.waiting() || r.rx.orders.bytes != 0 || len(r.rx.orders.free) != 0 {
		t.Errorf("%d bytes wait, and %d large trains are kept", r.rx.orders.bytes, len(r.rx.orders.free))
	}
}

// TestWaitingBytesAreBounded sends every other message, so that all wait.
func TestWaitingBytesAreBounded(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(0)
	s.plain = [][]byte{in4.UDP(make([]byte, 3000))} // a buffer of 16 KiB for each
	for n := 1; n < 3000; n += 2 {
		s.arrive(n)
		if r.rx.orders.bytes > maxWaitingBytes {
			t.Fatalf("%d bytes wait", r.rx.orders.bytes)
		}
		if n%256 == 1 {
			r.delivered()
		}
	}
	if r.engine.Stats().Lanes[0].RxOrder.Skipped == 0 {
		t.Error("nothing was given up")
	}
}

func TestEndedStreamsAreForgotten(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(4)
	s.arrive(0, 2)
	r.now += 2 * orderIdle
	r.rx.handleReceived(0)
	r.rx.handleReceived(0)
	if n := len(r.rx.orders.list); n != 0 {
		t.Errorf("%d streams are left", n)
	}
	s.arrive(3) // waits once more
	r.now += 2 * int64(spread.MaxOrderWait)
	r.rx.handleReceived(0)
	if got := s.got(); !slices.Equal(got, []int{0, 2, 3}) {
		t.Errorf("got %v", got)
	}
}

func TestOrderingAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(1)
	const rounds = 60
	var messages [][]byte
	for n := range 2 * rounds {
		messages = append(messages, r.sealAs(s.first+uint64(n^1), s.plain[0]))
	}
	buf, at := make([]byte, tun.MaxTrain), 0
	if n := testing.AllocsPerRun(rounds-10, func() {
		for range 2 {
			r.receive(messages[at], len(messages[at]))
			at++
		}
		for r.tun.TryReceive(0, buf) > 0 {
		}
	}); n != 0 {
		t.Errorf("got %v allocations per pair of messages, want 0", n)
	}
	if o := r.engine.Stats().Lanes[0].RxOrder; o.Waited < rounds-10 {
		t.Errorf("counted %+v", o)
	}
}

// TestWorkersKeepStreamInOrder has trains that arrive in turned pairs, each pair from two ports, and workers that open them.
func TestWorkersKeepStreamInOrder(t *testing.T) {
	r := newRigWithWorkers(t, manyWorkers()).hasty()
	r.ordering()
	const trains, messages = 8, 45
	s := r.stream(0)
	f, number := flow.Flow{Ends: in4, ID: 1}, uint64(0)
	check := flow.Checker{}
	for range 20 {
		for i := range trains {
			var run []byte
			packets, err := flow.Packets(f.Train(messages, 1300))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range packets {
				run = append(run, r.sealAs(s.first+number, p)...)
				number++
			}
			from := there
			from.Dst = netip.AddrPortFrom(there.Dst.Addr(), uint16(61000+i))
			r.arriveFrom(i^1, from, run, len(run)/messages)
		}
		r.rx.batch(trains)
		for _, train := range r.delivered() {
			if err := check.Take(train); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := check.Total(); n != number {
		t.Errorf("%d of %d packets came out", n, number)
	}
	offered(t, r.engine.Stats().Lanes[0].RxWorkers)
	if o := r.engine.Stats().Lanes[0].RxOrder; o.Waited == 0 || o.Late+o.Skipped > 0 {
		t.Errorf("counted %+v", o)
	}
}

// afterStream are messages of the flow of s that do not belong to it: ordinary ones, and those of other streams, in its session and in a new one.
func afterStream(r *rig, s *stream) map[string]func(plain []byte) []byte {
	next, _ := r.remote.OpenStream()
	counter, _ := next.Reserve(1)
	_, theirs := r.newSession(r.peer, true)
	in := func(k *session.Keypair, counter uint64, plain []byte) []byte {
		remote := r.remote
		defer func() { r.remote = remote }()
		r.remote = k
		return r.sealAs(counter, plain)
	}
	first, _ := theirs.OpenStream()
	newest, _ := first.Reserve(1)
	return map[string]func(plain []byte) []byte{
		"ordinary":                       func(plain []byte) []byte { return r.message(r.remote, plain) },
		"of the next stream":             func(plain []byte) []byte { return in(r.remote, counter, plain) },
		"ordinary, in a new session":     func(plain []byte) []byte { return r.message(theirs, plain) },
		"of a stream in the new session": func(plain []byte) []byte { return in(theirs, newest, plain) },
	}
}

// TestFlowStaysInOrderWhenStreamEnds: a message that was lost shortly before the end keeps others waiting.
func TestFlowStaysInOrderWhenStreamEnds(t *testing.T) {
	for _, name := range []string{"ordinary", "of the next stream", "ordinary, in a new session", "of a stream in the new session"} {
		r := newRig(t)
		r.ordering()
		s := r.stream(5)
		after := afterStream(r, s)[name]
		s.arrive(0, 2, 3)
		other := r.message(r.remote, flow.Ends{Src: in4.Src, Dst: mustPort("10.0.0.1:77")}.UDP(make([]byte, 100)))
		r.receive(other, len(other))
		if n := r.rx.orders.list[0].Waiting(); n != 2 {
			t.Errorf("%s: %d messages wait after one of another flow, want 2", name, n)
		}
		msg := after(s.plain[4])
		r.receive(msg, len(msg))
		if got := slices.DeleteFunc(s.got(), func(n int) bool { return n < 0 }); !slices.Equal(got, []int{0, 2, 3, 4}) {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestFlowStaysInOrderWhenStreamBegins: the flow's port without the stream is the slowest.
func TestFlowStaysInOrderWhenStreamBegins(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(5)
	s.arrive(1, 2) // numbers of messages: 2 and 3 of the flow
	before := r.message(r.remote, s.plain[4])
	r.receive(before, len(before))
	s.arrive(0)
	if got := s.got(); !slices.Equal(got, []int{4, 0, 1, 2}) {
		t.Errorf("got %v", got)
	}
}

// TestWaitingMessageDoesNotMoveEndpoint has a stream with a message from where the peer was before.
func TestWaitingMessageDoesNotMoveEndpoint(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.stream(2)
	before := there
	before.Dst = mustPort("198.51.100.7:9")
	early := r.sealAs(s.first+1, s.plain[1])
	r.receiveFrom(before, early, len(early))
	s.arrive(0)
	if got := s.got(); !slices.Equal(got, []int{0, 1}) || len(r.owner.roams) != 0 {
		t.Errorf("got %v, roamed to %v", got, r.owner.roams)
	}
}

// TestStreamInUseDoesNotEndForAnother: a peer with too many streams has some that are not in order, instead of none that is.
func TestStreamInUseDoesNotEndForAnother(t *testing.T) {
	r := newRig(t)
	r.ordering()
	var all []*stream
	for range maxPeerOrders {
		all = append(all, r.stream(4))
		all[len(all)-1].arrive(0, 2)
	}
	remote := r.remote
	another := func() *stream { // of another flow, in another session
		_, r.remote = r.newSession(r.peer, true)
		for range maxPeerOrders {
			r.stream(0)
		}
		return r.stream(4)
	}
	last := another()
	last.arrive(0, 2)
	if n := last.waits(); n != 0 {
		t.Errorf("%d messages of a stream too many wait", n)
	}
	r.delivered()
	r.remote = remote
	for _, s := range all {
		s.arrive(1)
		if got := s.got(); !slices.Equal(got, []int{1, 2}) {
			t.Fatalf("got %v", got)
		}
	}
	r.now += 2 * int64(spread.MaxOrderWait)
	last = another()
	last.arrive(0, 2)
	if n := last.waits(); n != 1 {
		t.Errorf("%d messages of a stream wait that replaces an unused one, want 1", n)
	}
}

// TestPeersShareOrders: peers that hold all orders of a lane leave one to each peer with fewer, and get none back while they have most.
func TestPeersShareOrders(t *testing.T) {
	r := newRig(t)
	r.ordering()
	mine, greedy := r.remote, []*session.Keypair{}
	for i := range maxOrders / maxPeerOrders {
		other, _ := r.newPeer(fmt.Sprintf("10.0.1.%d/32", i+1))
		_, r.remote = r.newSession(other, true)
		greedy = append(greedy, r.remote)
		for range maxPeerOrders {
			r.stream(1).arrive(0)
		}
	}
	r.remote = mine
	r.delivered()
	s := r.stream(4)
	s.arrive(0, 2)
	if n := s.waits(); n != 1 {
		t.Fatalf("%d messages of the only stream of a peer wait, want 1", n)
	}
	for _, r.remote = range greedy {
		r.stream(1).arrive(0)
	}
	r.remote = mine
	s.arrive(1)
	if got := s.got(); !slices.Equal(got, []int{0, 1, 2}) || len(r.rx.orders.list) != maxOrders {
		t.Errorf("got %v with %d orders, want them in order and %d", got, len(r.rx.orders.list), maxOrders)
	}
	want := map[*Peer]int{}
	for _, o := range r.rx.orders.list {
		want[o.session.Peer]++
	}
	if got := r.rx.orders.counts; !maps.Equal(got, want) || len(got) != 5 {
		t.Errorf("got counts %v of 5 peers, want %v", got, want)
	}
	r.now += 2 * orderIdle
	r.rx.handleReceived(0)
	r.rx.handleReceived(0)
	if got := r.rx.orders.counts; len(got) != 0 {
		t.Errorf("the orders have ended: got counts %v, want none", got)
	}
}

// waits returns the number of messages of the stream that wait.
func (s *stream) waits() (n int) {
	number, _ := session.SplitStream(s.first)
	for _, o := range s.r.rx.orders.list {
		if o.number == number && o.keys.Remote() == s.r.remote.Local() {
			n += o.Waiting()
		}
	}
	return n
}

// TestStreamLeavesReceiveQueueRoom: the other lanes have all of the receive budget that they share.
func TestStreamLeavesReceiveQueueRoom(t *testing.T) {
	r := newRig(t)
	r.ordering()
	r.engine.rxBudget.bytes.left.Store(0)
	limit := r.rx.queue.byteLimit.limit()
	s := r.stream(0)
	s.plain = [][]byte{in4.UDP(make([]byte, 3000))} // a buffer of 16 KiB for each
	for n := 1; n < 1000; n += 2 {
		s.arrive(n)
		if r.rx.orders.bytes > limit {
			t.Fatalf("%d bytes wait, the lane may use %d", r.rx.orders.bytes, limit)
		}
		if n%128 == 1 {
			r.delivered()
		}
	}
	packets := make([][]byte, 40)
	for i := range packets {
		packets[i] = in4.UDP(make([]byte, 1372))
	}
	for i := range 16 {
		run, size := r.seal(packets...)
		r.arriveFrom(i, there, run, size)
	}
	r.rx.batch(16)
	if n := r.drops(drop.RXQueueFull); n != 0 {
		t.Errorf("%d messages were dropped for those that wait", n)
	}
}

// TestStreamCountsReceiveQueueAgainstBudget: the queue has two fifths of what the lane may use, and the other lanes all that they share.
func TestStreamCountsReceiveQueueAgainstBudget(t *testing.T) {
	r := newRig(t)
	r.ordering()
	r.engine.rxBudget.bytes.left.Store(0)
	q := &r.rx.queue
	limit := q.byteLimit.limit()
	for q.buffers.used < limit*2/5 {
		run, size := r.seal(in4.UDP(make([]byte, 1372)), in4.UDP(make([]byte, 1372)))
		r.arriveFrom(0, there, run, size)
		r.rx.admit(0)
	}
	queued := q.buffers.used
	s := r.stream(0)
	s.plain = [][]byte{in4.UDP(make([]byte, 3000))} // a buffer of 16 KiB for each
	most := 0
	for n := 1; n < 1000; n += 2 {
		msg := s.r.sealAs(s.first+uint64(n), s.plain[0])
		r.rx.handleElement(&element{Datagrams: underlay.Datagrams{Buf: msg, N: len(msg), SegSize: len(msg), From: there}})
		r.rx.flush()
		if most = max(most, r.rx.orders.bytes); most+queued > limit {
			t.Fatalf("%d bytes wait, and %d are in the queue. The lane may use %d", most, queued, limit)
		}
		if n%128 == 1 {
			r.delivered()
		}
	}
	if most+queued < limit*9/10 {
		t.Errorf("%d bytes wait, and %d are in the queue, much less than the %d that the lane may use", most, queued, limit)
	}
}

// TestHostileStreamsLoseAndKeepNothing: whatever numbers a peer uses, each of its messages is delivered or counted, and no buffer is kept.
func TestHostileStreamsLoseAndKeepNothing(t *testing.T) {
	r := newRig(t)
	r.ordering()
	rng := rand.New(rand.NewPCG(7, 7))
	plain := in4.UDP(make([]byte, 60))
	jumps := []uint64{1, 1, 1, 2, 3, 64, 5000, 8191, 8192, 8193, 1 << 31, 1<<32 - 3}
	var next [12]uint64
	messages, delivered := 0, 0
	for range 3000 {
		var run []byte
		size := 0
		for range 1 + rng.IntN(8) {
			stream := uint64(rng.IntN(len(next)))
			counter := uint64(1)<<62 | stream<<32 | next[stream]&(1<<32-1)
			next[stream] += jumps[rng.IntN(len(jumps))]
			msg := r.sealAs(counter, plain)
			if rng.IntN(4) == 0 {
				msg = r.message(r.remote, plain)
			}
			run, size = append(run, msg...), len(msg)
			messages++
		}
		r.receive(run, size)
		r.now += rng.Int64N(int64(spread.MaxOrderWait) / 4)
		delivered += len(packetsOf(t, r.delivered()...))
	}
	for range 2 {
		r.now += 2 * int64(spread.MaxOrderWait)
		r.rx.batch(0)
	}
	delivered += len(packetsOf(t, r.delivered()...))
	if lost := messages - delivered; lost != int(r.allDrops()) || r.rx.orders.waiting() || r.rx.orders.bytes != 0 || r.rx.queue.buffers.used != 0 {
		t.Errorf("%d of %d messages are missing, %d were dropped. %d bytes wait, %d are in use", lost, messages, r.allDrops(), r.rx.orders.bytes, r.rx.queue.buffers.used)
	}
	if o := r.engine.Stats().Lanes[0].RxOrder; o.Waited == 0 || o.Late == 0 || o.Skipped == 0 {
		t.Errorf("counted %+v", o)
	}
}
