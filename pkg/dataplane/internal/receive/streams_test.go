// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive/order"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestOrderingAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.Stream(1)
	const rounds = 60
	var messages [][]byte
	for n := range 2 * rounds {
		messages = append(messages, r.SealAs(s.First+uint64(n^1), s.Plain[0]))
	}
	buf, at := make([]byte, tun.MaxTrain), 0
	if n := testing.AllocsPerRun(rounds-10, func() {
		for range 2 {
			r.Receive(messages[at], len(messages[at]))
			at++
		}
		for r.TUN.TryReceive(0, buf) > 0 {
		}
	}); n != 0 {
		t.Errorf("got %v allocations per pair of messages, want 0", n)
	}
	if o := r.Lane.Snapshot().RxOrder; o.Waited < rounds-10 {
		t.Errorf("counted %+v", o)
	}
}

// TestWorkersKeepStreamInOrder has trains that arrive in turned pairs, each pair from two ports, and workers that open them.
func TestWorkersKeepStreamInOrder(t *testing.T) {
	r := newHastyRig(t, lanetest.ManyWorkers())
	r.ordering()
	const trains, messages = 8, 45
	s := r.Stream(0)
	f, number := flow.Flow{Ends: lanetest.In4, ID: 1}, uint64(0)
	check := flow.Checker{}
	for range 20 {
		for i := range trains {
			var run []byte
			packets, err := flow.Packets(f.Train(messages, 1300))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range packets {
				run = append(run, r.SealAs(s.First+number, p)...)
				number++
			}
			from := lanetest.There
			from.Dst = netip.AddrPortFrom(lanetest.There.Dst.Addr(), uint16(61000+i))
			r.arriveFrom(i^1, from, run, len(run)/messages)
		}
		r.rx.batch(trains)
		for _, train := range r.Delivered() {
			if err := check.Take(train); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := check.Total(); n != number {
		t.Errorf("%d of %d packets came out", n, number)
	}
	lanetest.Offered(t, r.Lane.Snapshot().RxWorkers)
	if o := r.Lane.Snapshot().RxOrder; o.Waited == 0 || o.Late+o.Skipped > 0 {
		t.Errorf("counted %+v", o)
	}
}

// TestWaitingMessageDoesNotMoveEndpoint has a stream with a message from where the peer was before.
func TestWaitingMessageDoesNotMoveEndpoint(t *testing.T) {
	r := newRig(t)
	r.ordering()
	s := r.Stream(2)
	before := lanetest.There
	before.Dst = netip.MustParseAddrPort("198.51.100.7:9")
	early := r.SealAs(s.First+1, s.Plain[1])
	r.ReceiveFrom(before, early, len(early))
	s.Arrive(0)
	if got := s.Got(); !slices.Equal(got, []int{0, 1}) || len(r.Owner.Roams) != 0 {
		t.Errorf("got %v, roamed to %v", got, r.Owner.Roams)
	}
}

// TestStreamLeavesReceiveQueueRoom: the other lanes have all of the receive budget that they share.
func TestStreamLeavesReceiveQueueRoom(t *testing.T) {
	r := newRig(t)
	r.ordering()
	r.budget.bytes.Left.Store(0)
	limit := r.rx.queue.byteLimit.Limit()
	s := r.Stream(0)
	s.Plain = [][]byte{lanetest.In4.UDP(make([]byte, 3000))} // a buffer of 16 KiB for each
	for n := 1; n < 1000; n += 2 {
		s.Arrive(n)
		if used := r.rx.queue.buffers.Used; used > limit {
			t.Fatalf("%d bytes wait, the lane may use %d", used, limit)
		}
		if n%128 == 1 {
			r.Delivered()
		}
	}
	packets := make([][]byte, 40)
	for i := range packets {
		packets[i] = lanetest.In4.UDP(make([]byte, 1372))
	}
	for i := range 16 {
		run, size := r.Seal(packets...)
		r.arriveFrom(i, lanetest.There, run, size)
	}
	r.rx.batch(16)
	if n := r.Drops(drop.RXQueueFull); n != 0 {
		t.Errorf("%d messages were dropped for those that wait", n)
	}
}

// TestStreamCountsReceiveQueueAgainstBudget: the queue has two fifths of what the lane may use, and the other lanes all that they share.
func TestStreamCountsReceiveQueueAgainstBudget(t *testing.T) {
	r := newRig(t)
	r.ordering()
	r.budget.bytes.Left.Store(0)
	q := &r.rx.queue
	limit := q.byteLimit.Limit()
	for q.buffers.Used < limit*2/5 {
		run, size := r.Seal(lanetest.In4.UDP(make([]byte, 1372)), lanetest.In4.UDP(make([]byte, 1372)))
		r.arriveFrom(0, lanetest.There, run, size)
		r.rx.admit(0)
	}
	queued := q.buffers.Used
	s := r.Stream(0)
	s.Plain = [][]byte{lanetest.In4.UDP(make([]byte, 3000))} // a buffer of 16 KiB for each
	most := 0
	for n := 1; n < 1000; n += 2 {
		msg := s.R.SealAs(s.First+uint64(n), s.Plain[0])
		r.rx.handleElement(&element{Origin: order.Origin{Datagrams: underlay.Datagrams{Buf: msg, N: len(msg), SegSize: len(msg), From: lanetest.There}}})
		r.rx.flush()
		if most = max(most, q.buffers.Used-queued); most+queued > limit {
			t.Fatalf("%d bytes wait, and %d are in the queue. The lane may use %d", most, queued, limit)
		}
		if n%128 == 1 {
			r.Delivered()
		}
	}
	if most+queued < limit*9/10 {
		t.Errorf("%d bytes wait, and %d are in the queue, much less than the %d that the lane may use", most, queued, limit)
	}
}

// chanLane is an underlay.Lane that receives from a channel until it is closed.
type chanLane struct {
	underlay.Lane
	messages chan []byte
}

// Recv implements underlay.Lane.
func (c chanLane) Recv(rx []underlay.Datagrams) (int, error) {
	msg, ok := <-c.messages
	if !ok {
		return 0, net.ErrClosed
	}
	rx[0].N, rx[0].SegSize, rx[0].From = copy(rx[0].Buf, msg), len(msg), lanetest.There
	return 1, nil
}

// TryRecv implements underlay.Lane.
func (chanLane) TryRecv([]underlay.Datagrams) int { return 0 }

// TestLaneWithWaitingMessagesPausesBetweenCalls: a lane that never pauses would use a whole core. In a bubble time passes only while it pauses.
func TestLaneWithWaitingMessagesPausesBetweenCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		began := time.Now()
		r.Shared.Clock = func() int64 { return r.Now + int64(time.Since(began)) }
		s := r.Stream(2)
		conn, calls := chanLane{messages: make(chan []byte)}, 0
		most := int(spread.MaxOrderWait/orderPause) + 1
		tryRecv := func(rx []underlay.Datagrams) int {
			if calls++; calls <= most {
				return 0
			}
			msg := r.SealAs(s.First, s.Plain[0]) // ends the wait
			rx[0].N, rx[0].SegSize, rx[0].From = copy(rx[0].Buf, msg), len(msg), lanetest.There
			return 1
		}
		go r.rx.Run(conn, tryRecv, nil)
		defer close(conn.messages)
		conn.messages <- r.SealAs(s.First+1, s.Plain[1])
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.Got(); calls > most || calls < 2 || !slices.Equal(got, []int{1}) {
			t.Errorf("got %v after %d calls, want at most %d in %v", got, calls, most, spread.MaxOrderWait)
		}
	})
}

func TestHelloAgreesOnStreamsOfItsSession(t *testing.T) {
	r := newRig(t)
	for _, hello := range []wire.Hello{{Gathers: true, First: 61000, Last: 61999, Lanes: 1}, {Gathers: true, First: 61000, Last: 61999}} {
		ours, theirs := r.NewSession(r.Peer, true)
		if _, ok := ours.OpenStream(); ok {
			t.Error("a stream was opened before the peer's hello")
		}
		msg := r.Message(theirs, wire.AppendHello(nil, &hello))
		r.Receive(msg, len(msg))
		if s, ok := ours.OpenStream(); ok != (hello.Lanes > 0) {
			t.Errorf("after a hello with %d lanes: got stream %v, %v", hello.Lanes, s, ok)
		}
	}
}
