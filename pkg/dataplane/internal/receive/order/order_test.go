// SPDX-License-Identifier: Apache-2.0

package order

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestStreamIsDeliveredInOrder(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(8)
	s.Arrive(0, 2, 3, 5)
	if got := s.Got(); !slices.Equal(got, []int{0}) {
		t.Errorf("got %v before 1 arrived", got)
	}
	s.Arrive(1)
	if got := s.Got(); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("got %v when 1 arrived", got)
	}
	r.Now += 2 * int64(spread.MaxOrderWait)
	r.tend()
	if got := s.Got(); !slices.Equal(got, []int{5}) {
		t.Errorf("got %v when 4 was lost", got)
	}
	s.Arrive(4)
	if got := s.Got(); !slices.Equal(got, []int{4}) {
		t.Errorf("got %v when 4 was late", got)
	}
	want := lane.OrderStats{Waited: 3, Late: 1, Skipped: 1}
	if got := r.Lane.Snapshot().RxOrder; got != want || r.orders.Waiting() || r.orders.bytes != 0 {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// TestLongLossOfStreamIsCounted: more messages are lost than could wait.
func TestLongLossOfStreamIsCounted(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(1)
	s.Arrive(0, 20000)
	r.Now += 2 * int64(spread.MaxOrderWait)
	r.tend()
	want := lane.OrderStats{Waited: 1, Skipped: 19999}
	if got := r.Lane.Snapshot().RxOrder; got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// TestOtherFlowsDoNotWaitForStream: only the messages of the stream do.
func TestOtherFlowsDoNotWaitForStream(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(2)
	early, udp := r.SealAs(s.First+1, s.Plain[1]), lanetest.In4.UDP(make([]byte, len(s.Plain[0])-28))
	other, size := r.Seal(udp)
	r.Receive(slices.Concat(early, other, r.SealAs(s.First+3, s.Plain[1])), size) // coalesced: they came from one port
	if got := r.Delivered(); len(got) != 1 || !slices.Equal(got[0][offload.VnetHdrLen:], udp) {
		t.Errorf("%d trains were delivered, want that of the other flow", len(got))
	}
	if n := r.orders.list[0].Waiting(); n != 2 {
		t.Errorf("%d messages wait, want 2", n)
	}
}

// TestReplayedMessagesOfStreamDoNotWait checks that one message cannot take the place of others.
func TestReplayedMessagesOfStreamDoNotWait(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(4)
	s.Arrive(2, 2, 2)
	if n := r.Drops(drop.RXReplay); n != 2 || r.orders.list[0].Waiting() != 1 {
		t.Errorf("%d replays were dropped, %d messages wait", n, r.orders.list[0].Waiting())
	}
}

// TestStreamAtSeveralLanesIsNotOrdered: each lane would wait for what the other has.
func TestStreamAtSeveralLanesIsNotOrdered(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(8)
	s.Arrive(0, 2)
	r.Keys.ClaimStream(0, 7)
	s.Arrive(3, 6)
	if got := s.Got(); !slices.Equal(got, []int{0, 2, 3, 6}) {
		t.Errorf("got %v", got)
	}
	if o := r.Lane.Snapshot().RxOrder; o.Unordered != 2 || len(r.orders.list) != 0 {
		t.Errorf("counted %+v", o)
	}
}

// TestPeerCannotOccupyOrders has a peer that begins streams and sends their ends only.
func TestPeerCannotOccupyOrders(t *testing.T) {
	r := newOrderRig(t)
	other, _ := r.NewPeer("10.0.0.9/32")
	ours, theirs := r.NewSession(other, true)
	st, _ := theirs.OpenStream()
	first, _ := st.Reserve(8)
	late := func(n uint64) {
		remote := r.Remote
		r.Remote = theirs
		msg := r.SealAs(first+n, flow.Ends{Src: netip.MustParseAddrPort("10.0.0.9:5"), Dst: lanetest.Out4.Src}.UDP([]byte{byte(n)}))
		r.Remote = remote
		r.Receive(msg, len(msg))
	}
	late(0)
	late(2)
	for range 3 * maxOrders {
		s := r.Stream(1)
		s.Arrive(7, 9000, 1<<29)
	}
	r.Delivered()
	own := 0
	for _, o := range r.orders.list {
		if o.keys != ours {
			own++
		}
	}
	if own > maxPeerOrders || r.orders.bytes > maxWaitingBytes {
		t.Errorf("the peer has %d streams, and %d bytes wait", own, r.orders.bytes)
	}
	late(1)
	if n := len(r.Delivered()); n == 0 || r.Lane.Snapshot().RxOrder.Late != 0 {
		t.Errorf("%d trains of the other peer came out, late: %d", n, r.Lane.Snapshot().RxOrder.Late)
	}
}

// TestPeerMayHaveAllItsStreamsAtOneLane: a sender with many lanes has one for each.
func TestPeerMayHaveAllItsStreamsAtOneLane(t *testing.T) {
	r := newOrderRig(t)
	var streams []*lanetest.Stream
	for range session.MaxOpenStreams {
		streams = append(streams, r.Stream(4))
	}
	for _, numbers := range [][]int{{0}, {2}, {1}} {
		for _, s := range streams {
			s.Arrive(numbers...)
		}
	}
	want := lane.OrderStats{Waited: session.MaxOpenStreams}
	if got := r.Lane.Snapshot().RxOrder; got != want || r.orders.Waiting() {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// TestEmptyWaitingMessagesTakeMemory has a peer that sends a train of keepalives, which need next to no buffer.
func TestEmptyWaitingMessagesTakeMemory(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(0)
	const most = 65536 / wire.DataOverhead // of a receive buffer
	var run []byte
	for n := range uint64(most) {
		run = append(run, r.SealAs(s.First+1+n, nil)...)
	}
	r.Receive(run, wire.DataOverhead)
	if o := r.orders.list[0]; o.Waiting() != most || r.orders.bytes < most*waitingMessageBytes {
		t.Errorf("%d messages wait, with %d bytes", o.Waiting(), r.orders.bytes)
	}
	r.Now += 2 * int64(spread.MaxOrderWait)
	r.tend()
	if r.orders.Waiting() || r.orders.bytes != 0 || len(r.orders.free) != 0 {
		t.Errorf("%d bytes wait, and %d large trains are kept", r.orders.bytes, len(r.orders.free))
	}
}

// TestWaitingBytesAreBounded sends every other message, so that all wait.
func TestWaitingBytesAreBounded(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(0)
	s.Plain = [][]byte{lanetest.In4.UDP(make([]byte, 3000))} // a buffer of 16 KiB for each
	for n := 1; n < 3000; n += 2 {
		s.Arrive(n)
		if r.orders.bytes > maxWaitingBytes {
			t.Fatalf("%d bytes wait", r.orders.bytes)
		}
		if n%256 == 1 {
			r.Delivered()
		}
	}
	if r.Lane.Snapshot().RxOrder.Skipped == 0 {
		t.Error("nothing was given up")
	}
}

func TestEndedStreamsAreForgotten(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(4)
	s.Arrive(0, 2)
	r.Now += 2 * orderIdle
	r.tend()
	r.tend()
	if n := len(r.orders.list); n != 0 {
		t.Errorf("%d streams are left", n)
	}
	s.Arrive(3) // waits once more
	r.Now += 2 * int64(spread.MaxOrderWait)
	r.tend()
	if got := s.Got(); !slices.Equal(got, []int{0, 2, 3}) {
		t.Errorf("got %v", got)
	}
}

// afterStream are messages of the flow of s that do not belong to it: ordinary ones, and those of other streams, in its session and in a new one.
func afterStream(r *orderRig, s *lanetest.Stream) map[string]func(plain []byte) []byte {
	next, _ := r.Remote.OpenStream()
	counter, _ := next.Reserve(1)
	_, theirs := r.NewSession(r.Peer, true)
	in := func(k *session.Keypair, counter uint64, plain []byte) []byte {
		remote := r.Remote
		defer func() { r.Remote = remote }()
		r.Remote = k
		return r.SealAs(counter, plain)
	}
	first, _ := theirs.OpenStream()
	newest, _ := first.Reserve(1)
	return map[string]func(plain []byte) []byte{
		"ordinary":                       func(plain []byte) []byte { return r.Message(r.Remote, plain) },
		"of the next stream":             func(plain []byte) []byte { return in(r.Remote, counter, plain) },
		"ordinary, in a new session":     func(plain []byte) []byte { return r.Message(theirs, plain) },
		"of a stream in the new session": func(plain []byte) []byte { return in(theirs, newest, plain) },
	}
}

// TestFlowStaysInOrderWhenStreamEnds: a message that was lost shortly before the end keeps others waiting.
func TestFlowStaysInOrderWhenStreamEnds(t *testing.T) {
	for _, name := range []string{"ordinary", "of the next stream", "ordinary, in a new session", "of a stream in the new session"} {
		r := newOrderRig(t)
		s := r.Stream(5)
		after := afterStream(r, s)[name]
		s.Arrive(0, 2, 3)
		other := r.Message(r.Remote, flow.Ends{Src: lanetest.In4.Src, Dst: netip.MustParseAddrPort("10.0.0.1:77")}.UDP(make([]byte, 100)))
		r.Receive(other, len(other))
		if n := r.orders.list[0].Waiting(); n != 2 {
			t.Errorf("%s: %d messages wait after one of another flow, want 2", name, n)
		}
		msg := after(s.Plain[4])
		r.Receive(msg, len(msg))
		if got := slices.DeleteFunc(s.Got(), func(n int) bool { return n < 0 }); !slices.Equal(got, []int{0, 2, 3, 4}) {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestFlowStaysInOrderWhenStreamBegins: the flow's port without the stream is the slowest.
func TestFlowStaysInOrderWhenStreamBegins(t *testing.T) {
	r := newOrderRig(t)
	s := r.Stream(5)
	s.Arrive(1, 2) // numbers of messages: 2 and 3 of the flow
	before := r.Message(r.Remote, s.Plain[4])
	r.Receive(before, len(before))
	s.Arrive(0)
	if got := s.Got(); !slices.Equal(got, []int{4, 0, 1, 2}) {
		t.Errorf("got %v", got)
	}
}

// TestStreamInUseDoesNotEndForAnother: a peer with too many streams has some that are not in order, instead of none that is.
func TestStreamInUseDoesNotEndForAnother(t *testing.T) {
	r := newOrderRig(t)
	var all []*lanetest.Stream
	for range maxPeerOrders {
		all = append(all, r.Stream(4))
		all[len(all)-1].Arrive(0, 2)
	}
	remote := r.Remote
	another := func() *lanetest.Stream { // of another flow, in another session
		_, r.Remote = r.NewSession(r.Peer, true)
		for range maxPeerOrders {
			r.Stream(0)
		}
		return r.Stream(4)
	}
	last := another()
	last.Arrive(0, 2)
	if n := r.waits(last); n != 0 {
		t.Errorf("%d messages of a stream too many wait", n)
	}
	r.Delivered()
	r.Remote = remote
	for _, s := range all {
		s.Arrive(1)
		if got := s.Got(); !slices.Equal(got, []int{1, 2}) {
			t.Fatalf("got %v", got)
		}
	}
	r.Now += 2 * int64(spread.MaxOrderWait)
	last = another()
	last.Arrive(0, 2)
	if n := r.waits(last); n != 1 {
		t.Errorf("%d messages of a stream wait that replaces an unused one, want 1", n)
	}
}

// TestPeersShareOrders: peers that hold all orders of a lane leave one to each peer with fewer, and get none back while they have most.
func TestPeersShareOrders(t *testing.T) {
	r := newOrderRig(t)
	mine, greedy := r.Remote, []*session.Keypair{}
	for i := range maxOrders / maxPeerOrders {
		other, _ := r.NewPeer(fmt.Sprintf("10.0.1.%d/32", i+1))
		_, r.Remote = r.NewSession(other, true)
		greedy = append(greedy, r.Remote)
		for range maxPeerOrders {
			r.Stream(1).Arrive(0)
		}
	}
	r.Remote = mine
	r.Delivered()
	s := r.Stream(4)
	s.Arrive(0, 2)
	if n := r.waits(s); n != 1 {
		t.Fatalf("%d messages of the only stream of a peer wait, want 1", n)
	}
	for _, r.Remote = range greedy {
		r.Stream(1).Arrive(0)
	}
	r.Remote = mine
	r.Delivered()
	s.Arrive(1)
	if got := s.Got(); !slices.Equal(got, []int{1, 2}) || len(r.orders.list) != maxOrders {
		t.Errorf("got %v with %d orders, want them in order and %d", got, len(r.orders.list), maxOrders)
	}
	want := map[*lane.Peer]int{}
	for _, o := range r.orders.list {
		want[o.session.Peer]++
	}
	if got := r.orders.counts; !maps.Equal(got, want) || len(got) != 5 {
		t.Errorf("got counts %v of 5 peers, want %v", got, want)
	}
	r.Now += 2 * orderIdle
	r.tend()
	r.tend()
	if got := r.orders.counts; len(got) != 0 {
		t.Errorf("the orders have ended: got counts %v, want none", got)
	}
}

// waits returns the number of messages of the stream that wait.
func (r *orderRig) waits(s *lanetest.Stream) (n int) {
	number, _ := session.SplitStream(s.First)
	for _, o := range r.orders.list {
		if o.number == number && o.keys.Remote() == r.Remote.Local() {
			n += o.Waiting()
		}
	}
	return n
}

// TestHostileStreamsLoseAndKeepNothing: whatever numbers a peer uses, each of its messages is delivered or counted, and no buffer is kept.
func TestHostileStreamsLoseAndKeepNothing(t *testing.T) {
	r := newOrderRig(t)
	rng := rand.New(rand.NewPCG(7, 7))
	plain := lanetest.In4.UDP(make([]byte, 60))
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
			msg := r.SealAs(counter, plain)
			if rng.IntN(4) == 0 {
				msg = r.Message(r.Remote, plain)
			}
			run, size = append(run, msg...), len(msg)
			messages++
		}
		r.Receive(run, size)
		r.Now += rng.Int64N(int64(spread.MaxOrderWait) / 4)
		delivered += len(lanetest.PacketsOf(t, r.Delivered()...))
	}
	for range 2 {
		r.Now += 2 * int64(spread.MaxOrderWait)
		r.tend()
	}
	delivered += len(lanetest.PacketsOf(t, r.Delivered()...))
	if lost := messages - delivered; lost != int(r.AllDrops()) || r.orders.Waiting() || r.orders.bytes != 0 || r.buffers.Used != 0 {
		t.Errorf("%d of %d messages are missing, %d were dropped. %d bytes wait, %d are in use", lost, messages, r.AllDrops(), r.orders.bytes, r.buffers.Used)
	}
	if o := r.Lane.Snapshot().RxOrder; o.Waited == 0 || o.Late == 0 || o.Skipped == 0 {
		t.Errorf("counted %+v", o)
	}
}
