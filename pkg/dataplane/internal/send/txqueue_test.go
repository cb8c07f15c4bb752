// SPDX-License-Identifier: Apache-2.0

package send

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// slowBuffer is a send buffer of the rig's port: it accepts that many more runs in group 0.
type slowBuffer struct{ room int }

func (b *slowBuffer) fail(r *underlay.Run) error {
	if r.Group > 0 {
		return nil
	}
	if b.room == 0 {
		return underlay.ErrSendBufferFull
	}
	b.room--
	return nil
}

// slowRig is a rig whose send buffer has room for so many runs.
func slowRig(t *testing.T, room int) (*rig, *slowBuffer) {
	t.Helper()
	r, b := newRig(t), &slowBuffer{room: room}
	r.Conn.Fail = b.fail
	return r, b
}

// pass gives the transmitter d of time, and one turn of its loop.
func (r *rig) pass(d time.Duration) {
	r.Now += int64(d)
	r.tx.sendQueued()
}

func TestFullSendBufferLosesAndReordersNothing(t *testing.T) {
	r, b := slowRig(t, 1)
	f := flow.Flow{Ends: lanetest.Out4}
	var want [][]byte
	send := func(trains ...[]byte) {
		want = append(want, lanetest.PacketsOf(t, trains...)...)
		r.transmit(trains...)
	}
	send(f.Train(10, 1000)) // the buffer takes it
	send(f.Train(20, 1000)) // refused after it was sealed
	send(f.Next(100), f.Train(5, 900), f.Next(8))
	r.pass(time.Millisecond)
	if held, waiting := len(r.tx.out.held.list), r.tx.queue.Len(); held != 1 || waiting != 3 {
		t.Fatalf("%d runs are held, %d trains wait, want 1 and 3", held, waiting)
	}
	b.room = 2
	r.pass(time.Millisecond) // the held run, and one of the waiting trains
	b.room = 100
	send(f.Next(50))
	r.pass(time.Millisecond)
	r.pass(time.Millisecond)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), want)
	if n := r.AllDrops(); n != 0 {
		t.Errorf("%d packets were dropped", n)
	}
	if counted := r.Peer.Packets().Tx; counted != uint64(len(want)) {
		t.Errorf("%d packets are counted as sent, want %d", counted, len(want))
	}
	if r.tx.active() || r.tx.queue.buffers.Used != 0 {
		t.Errorf("the queue is not empty: %d bytes of buffers are used", r.tx.queue.buffers.Used)
	}
}

// TestFullSendBufferStopsNoOtherPeer has a second peer in another send group.
func TestFullSendBufferStopsNoOtherPeer(t *testing.T) {
	r, _ := slowRig(t, 0)
	other, _ := r.NewPeer("10.0.0.3/32")
	keys, _ := r.NewSession(other, true)
	other.Current.Store(keys)
	other.SendGroup.Store(1)
	slow, fast := flow.Flow{Ends: lanetest.Out4}, flow.Flow{Ends: lanetest.Out4, ID: 1}
	fast.Dst = netip.MustParseAddrPort("10.0.0.3:2000")
	const rounds = 50
	for range rounds {
		r.transmit(slow.Train(3, 1000), fast.Train(4, 1000))
	}
	sent := 0
	for _, run := range r.Conn.Taken() {
		sent += len(run)
	}
	if sent != rounds*4 {
		t.Errorf("%d packets to the other peer were sent, want %d", sent, rounds*4)
	}
	if got := other.Packets().Tx; got != rounds*4 {
		t.Errorf("%d packets to the other peer are counted, want %d", got, rounds*4)
	}
	if r.Owner.Full == 0 {
		t.Error("nobody has called SendBufferFull")
	}
}

// TestPartlySentRunContinues has a send buffer that takes the first datagrams of a run, as sockets without GSO do.
func TestPartlySentRunContinues(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: lanetest.Out4}
	train := f.Train(10, 500)
	r.transmit(train)
	whole := r.Conn.Taken()[0]
	accept := 4
	r.Conn.Fail = func(run *underlay.Run) error {
		if accept < run.Segments {
			run.Sent = accept
			return underlay.ErrSendBufferFull
		}
		return nil
	}
	train = f.Train(10, 500)
	r.transmit(train)
	accept = 10
	r.pass(time.Millisecond)
	rest := r.Conn.Taken()
	if len(rest) != 1 || len(rest[0]) != 6 || len(rest[0][0]) != len(whole[0]) {
		t.Fatalf("the rest of the run is %d runs, want one of 6 datagrams", len(rest))
	}
	packets := lanetest.PacketsOf(t, train)[4:]
	var got [][]byte
	for _, msg := range rest[0] {
		got = append(got, r.Open(msg))
	}
	lanetest.SamePackets(t, lanetest.Unpadded(t, got), packets)
	if counted := r.Peer.Packets().Tx; counted != 20 {
		t.Errorf("%d packets are counted as sent, want 20", counted)
	}
}

// TestPartlySentRunCountsBothParts loses the port before the second part is sent.
func TestPartlySentRunCountsBothParts(t *testing.T) {
	r := newRig(t)
	r.Conn.Fail = func(run *underlay.Run) error {
		run.Sent = 4
		return underlay.ErrSendBufferFull
	}
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Train(10, 500))
	r.tx.out.lane.Conn.Store(nil)
	r.pass(time.Millisecond)
	if got := r.Peer.Packets(); got.Tx != 4 || got.TxDrops != 6 {
		t.Errorf("%d packets are counted as sent and %d as dropped, want 4 and 6", got.Tx, got.TxDrops)
	}
}

// TestPartlySentRunWithErrorCountsBothParts: some of its datagrams are too large for their path.
func TestPartlySentRunWithErrorCountsBothParts(t *testing.T) {
	for name, held := range map[string]bool{"at once": false, "when it is sent again": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Conn.Fail = func(run *underlay.Run) error {
				if held {
					held = false
					return underlay.ErrSendBufferFull
				}
				run.Sent = 4
				return underlay.ErrTooBig
			}
			f := flow.Flow{Ends: lanetest.Out4}
			r.transmit(f.Train(10, 500))
			r.pass(time.Millisecond)
			if got := r.Peer.Packets(); got.Tx != 4 || got.TxDrops != 6 {
				t.Errorf("%d packets are counted as sent and %d as dropped, want 4 and 6", got.Tx, got.TxDrops)
			}
		})
	}
}

// TestHeldRunFollowsItsPeer: the peer roams while a run waits for room.
func TestHeldRunFollowsItsPeer(t *testing.T) {
	r := newRig(t)
	refuse := true
	var to []netip.AddrPort
	r.Conn.Fail = func(run *underlay.Run) error {
		if refuse {
			return underlay.ErrSendBufferFull
		}
		to = append(to, run.To.Dst)
		return nil
	}
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Train(10, 500))
	moved := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.77:4242")}
	r.Peer.Endpoint.Store(&moved)
	refuse = false
	r.pass(time.Millisecond)
	if !slices.Equal(to, []netip.AddrPort{moved.Dst}) {
		t.Errorf("the held run went to %v, want %v", to, moved.Dst)
	}
}

// TestEndingLaneSendsWhatWaits: a successor reads the interface from then on, and knows nothing of what has been read before.
func TestEndingLaneSendsWhatWaits(t *testing.T) {
	for name, c := range map[string]struct{ refusals, sent int }{
		"there is room soon": {5, 60}, "there is none": {1 << 30, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Conn.Fail = func(*underlay.Run) error {
				if c.refusals--; c.refusals >= 0 {
					return underlay.ErrSendBufferFull
				}
				return nil
			}
			f := flow.Flow{Ends: lanetest.Out4}
			for range 6 { // one run is held, and the others are in the queue
				r.transmit(f.Train(10, 500))
			}
			r.tx.drain()
			if got := r.Peer.Packets(); int(got.Tx) != c.sent || int(got.TxDrops) != 60-c.sent {
				t.Errorf("%d packets are counted as sent and %d as dropped, want %d and %d", got.Tx, got.TxDrops, c.sent, 60-c.sent)
			}
		})
	}
}

// TestBusyLaneWithWorkersRetriesWhatWaits has a TUN queue full of trains to one peer, which the lane reads ahead for its workers, while
// a run to another peer is held.
func TestBusyLaneWithWorkersRetriesWhatWaits(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	other, _ := r.NewPeer("10.0.0.3/32")
	otherKeys, _ := r.NewSession(other, true)
	other.Current.Store(otherKeys)
	other.SendGroup.Store(1) // a send buffer of its own
	waits, elephant := flow.Flow{Ends: flow.Ends{Src: lanetest.Out4.Src, Dst: netip.MustParseAddrPort("10.0.0.3:7")}}, flow.Flow{Ends: lanetest.Out4}
	r.Conn.Fail = func(run *underlay.Run) error {
		r.Now += txRetry / 4 // time passes while the lane sends
		if run.Segments == 3 {
			return underlay.ErrSendBufferFull
		}
		return nil
	}
	r.transmit(waits.Train(3, 500))
	const trains = 3000
	for range trains {
		if err := r.TUN.Inject(0, elephant.Train(40, 1300)); err != nil {
			t.Fatal(err)
		}
	}
	r.tx.sendBatch(r.tx.reader.tryRead(r.tx.out.batch))
	if sent := r.Peer.Packets().Tx / 40; sent == 0 || sent > 16 || !r.tx.retryDue() {
		t.Errorf("the lane has sent %d of %d trains before it tries the held run again", sent, trains)
	}
}

// TestLaterRunsOfTrainWaitForFirst refuses the first run of a train, and would take the second.
func TestLaterRunsOfTrainWaitForFirst(t *testing.T) {
	r := newRig(t)
	refusals := 2
	r.Conn.Fail = func(*underlay.Run) error {
		if refusals > 0 {
			refusals--
			return underlay.ErrSendBufferFull
		}
		return nil
	}
	f := flow.Flow{Ends: lanetest.Out4}
	trains := [][]byte{f.Train(43, 1400), f.Train(43, 1400), f.Train(100, 600)} // the last needs the arena twice
	r.transmit(trains...)
	if refusals > 0 || len(r.Conn.Taken()) > 0 {
		t.Fatalf("runs were sent before older ones")
	}
	r.pass(time.Millisecond)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, trains...))
}

// TestWaitingTrainsLeaveFromTheirSource has a flow on a source of its own.
func TestWaitingTrainsLeaveFromTheirSource(t *testing.T) {
	r, b := slowRig(t, 0)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{3, 4}))
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Train(3, 1000))
	for range 3 {
		r.transmit(f.Train(3, 1000))
	}
	b.room = 100
	r.pass(time.Millisecond)
	if len(r.Conn.From) != 4 || r.Conn.From[0] < 3 || slices.Min(r.Conn.From) != slices.Max(r.Conn.From) {
		t.Errorf("the runs left from sources %v, want one of 3 and 4 for all", r.Conn.From)
	}
}

// TestFlowWithWaitingTrainsKeepsItsSource: a flow pauses for longer than the flowlet gap while its trains wait, and for less after they have
// left. Another source would be idle.
func TestFlowWithWaitingTrainsKeepsItsSource(t *testing.T) {
	for name, trains := range map[string]int{"a held run": 1, "a held run and trains in the queue": 4} {
		t.Run(name, func(t *testing.T) {
			r, b := slowRig(t, 0)
			r.Peer.Spread.Store(lane.NewSpread([]uint8{3, 4}))
			f := flow.Flow{Ends: lanetest.Out4}
			for range trains {
				r.transmit(f.Train(3, 1000))
			}
			r.pass(2 * spread.DefaultGap)
			r.transmit(f.Train(3, 1000))
			b.room = 100
			r.pass(time.Millisecond)
			r.pass(spread.DefaultGap - time.Millisecond)
			r.transmit(f.Train(3, 1000))
			first := r.Conn.From[0]
			if len(r.Conn.From) != trains+2 || slices.Min(r.Conn.From) != first || slices.Max(r.Conn.From) != first {
				t.Fatalf("the runs left from sources %v, want %d times the same", r.Conn.From, trains+2)
			}
			r.Peer.Spread.Load().Loads.Add(first, r.Now, 1<<20)
			r.pass(spread.DefaultGap)
			r.transmit(f.Train(3, 1000))
			if last := r.Conn.From[trains+2]; last == first {
				t.Errorf("after a pause the flow still leaves from source %d", last)
			}
		})
	}
}

// TestWaitingTrainsFollowChangeOfListenPort: the listen port changes while trains wait.
func TestWaitingTrainsFollowChangeOfListenPort(t *testing.T) {
	r, b := slowRig(t, 0)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{3, 4}))
	f := flow.Flow{Ends: lanetest.Out4}
	for range 4 {
		r.transmit(f.Train(3, 1000))
	}
	port := *r.tx.out.lane.Conn.Load()
	r.tx.out.lane.Conn.Store(&port)
	b.room = 100
	r.pass(time.Millisecond)
	if want := []int{0, 0, 0, 0}; !slices.Equal(r.Conn.From, want) {
		t.Errorf("the runs left from sources %v, want %v", r.Conn.From, want)
	}
}

func TestFullSendBufferIsRetriedOncePerMillisecond(t *testing.T) {
	r, _ := slowRig(t, 0)
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Next(100))
	r.pass(time.Millisecond)
	before := r.Conn.Sends
	for range 10 {
		r.pass(0)
	}
	if r.Conn.Sends != before {
		t.Errorf("%d retries in no time", r.Conn.Sends-before)
	}
	r.pass(time.Millisecond)
	if r.Conn.Sends != before+1 {
		t.Errorf("%d retries after a millisecond, want 1", r.Conn.Sends-before)
	}
}

// countingQueue counts the calls of its Queue, and is empty.
type countingQueue struct {
	tun.Queue
	reads, readOrs, tries int
}

func (q *countingQueue) Read([][]byte, []int) (int, error) { q.reads++; return 0, nil }

func (q *countingQueue) ReadOr([][]byte, []int, []int32) (int, error) { q.readOrs++; return 0, nil }

func (q *countingQueue) TryRead([][]byte, []int) int { q.tries++; return 0 }

// TestLaneWaitsForTUNAndSendBuffer checks how the TUN queue is read in each state of the transmit queue.
func TestLaneWaitsForTUNAndSendBuffer(t *testing.T) {
	r, b := slowRig(t, 0)
	q := &countingQueue{}
	r.tx.out.lane.Queue = q
	read := func(state string, want countingQueue) {
		t.Helper()
		*q = countingQueue{}
		if _, err := r.tx.read(); err != nil || *q != want {
			t.Errorf("%s: %+v, %v, want %+v", state, *q, err, want)
		}
	}
	read("nothing waits", countingQueue{reads: 1})
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Next(100)) // held
	read("a run is held", countingQueue{readOrs: 1})
	r.transmit(f.Next(100)) // waits
	read("a flow is yet to be tried", countingQueue{tries: 1})
	r.pass(0)
	read("waiting for room was in vain", countingQueue{tries: 1})
	read("the flow is blocked", countingQueue{readOrs: 1})
	r.Conn.Closed = true
	read("the port is closed", countingQueue{tries: 1})
	r.Conn.Closed, b.room = false, 100
	r.pass(0) // at once, because reading has ended without a train
	if sent := len(r.Sent()); sent != 2 {
		t.Errorf("%d packets were sent, want 2", sent)
	}
	read("nothing waits", countingQueue{reads: 1})
}

// stepQueue is a Queue whose reads are the given functions.
type stepQueue struct {
	tun.Queue
	steps []func(bufs [][]byte, sizes []int) (int, error)
}

func (q *stepQueue) Read(bufs [][]byte, sizes []int) (int, error) {
	step := q.steps[0]
	q.steps = q.steps[1:]
	return step(bufs, sizes)
}

func (q *stepQueue) ReadOr(bufs [][]byte, sizes []int, _ []int32) (int, error) {
	return q.Read(bufs, sizes)
}

func (q *stepQueue) TryRead([][]byte, []int) int { return 0 }

// TestLaneSendsHeldRunWithoutSignalOfRoom: nothing tells the lane that the send buffer has room. The wait for it ends with a train, in vain, or
// with a train that cannot be read.
func TestLaneSendsHeldRunWithoutSignalOfRoom(t *testing.T) {
	f := flow.Flow{Ends: lanetest.Out4}
	read := func(bufs [][]byte, sizes []int) (int, error) {
		sizes[0] = copy(bufs[0], f.Next(100))
		return 1, nil
	}
	for name, c := range map[string]struct {
		end  func([][]byte, []int) (int, error)
		sent int
	}{
		"in vain":          {func([][]byte, []int) (int, error) { return 0, nil }, 1},
		"with a train":     {read, 2},
		"with a bad train": {func([][]byte, []int) (int, error) { return 0, errors.New("invalid train") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, b := slowRig(t, 0)
			sent := 0
			r.tx.out.lane.Queue = &stepQueue{steps: []func([][]byte, []int) (int, error){
				read,
				func(bufs [][]byte, sizes []int) (int, error) {
					r.Now += txRetry
					b.room = 100
					return c.end(bufs, sizes)
				},
				func([][]byte, []int) (int, error) {
					sent = len(r.Sent())
					return 0, os.ErrClosed
				},
			}}
			r.tx.Run(nil)
			if sent != c.sent {
				t.Errorf("%d packets were sent before the next read, want %d", sent, c.sent)
			}
		})
	}
}

func TestLaneDoesNotWaitForFormerPort(t *testing.T) {
	r, _ := slowRig(t, 0)
	q := &countingQueue{}
	r.tx.out.lane.Queue = q
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Next(100))
	next := underlay.Lane(&lanetest.Recorder{TB: t})
	r.tx.out.lane.Conn.Store(&next)
	if _, err := r.tx.read(); err != nil || q.tries != 1 {
		t.Errorf("%+v, %v, want one try", *q, err)
	}
	r.pass(0)
	if got := next.(*lanetest.Recorder).Count; got != 1 {
		t.Errorf("%d packets were sent by the new port, want 1", got)
	}
}

// standingTX lets a queue stand for a second, while the send buffer takes one train in 10 ms and two arrive. It returns the packets sent.
func (r *rig) standingTX(b *slowBuffer, ecn packet.ECN) (sent [][]byte, offered int) {
	f := flow.Flow{Ends: lanetest.Out6}
	for range 100 {
		for range 2 {
			train := f.Train(5, 1000)
			setECN(train, ecn)
			r.transmit(train)
			offered += 5
		}
		b.room = 1
		r.pass(10 * time.Millisecond)
		sent = append(sent, lanetest.Unpadded(r.TB, r.Sent())...)
	}
	b.room = 1 << 30
	for r.tx.active() {
		r.pass(10 * time.Millisecond)
		sent = append(sent, lanetest.Unpadded(r.TB, r.Sent())...)
	}
	return sent, offered
}

// setECN sets the ECN field of an IPv6 train.
func setECN(train []byte, ecn packet.ECN) {
	ip := train[10:]
	ip[1] = ip[1]&^0x30 | byte(ecn)<<4
}

func TestStandingTransmitQueueMarksECNCapablePackets(t *testing.T) {
	r, b := slowRig(t, 0)
	sent, offered := r.standingTX(b, packet.ECT0)
	marks := 0
	for _, p := range sent {
		if packet.ECNOf(p) == packet.CE {
			marks++
		}
	}
	if len(sent) != offered || marks < 10 || marks > offered/2 {
		t.Errorf("of %d packets %d were sent, %d with a mark", offered, len(sent), marks)
	}
	if counted := r.Lane.Snapshot().TxMarks; counted != uint64(marks) {
		t.Errorf("%d marks are counted, want %d", counted, marks)
	}
}

func TestStandingTransmitQueueDropsSinglePackets(t *testing.T) {
	r, b := slowRig(t, 0)
	sent, offered := r.standingTX(b, packet.NotECT)
	dropped := int(r.Drops(drop.TXCongestion))
	if dropped < 2 || dropped > offered/10 || len(sent)+dropped != offered {
		t.Errorf("of %d packets %d were sent, %d dropped", offered, len(sent), dropped)
	}
	if got := r.Peer.Packets().TxDrops; got != uint64(dropped) {
		t.Errorf("%d drops are counted for the peer, want %d", got, dropped)
	}
}

// TestDroppedSinglePacketsFreeTheirBuffers lets CoDel empty elements.
func TestDroppedSinglePacketsFreeTheirBuffers(t *testing.T) {
	r, b := slowRig(t, 0)
	f := flow.Flow{Ends: lanetest.Out6}
	for range 100 {
		for range 2 * underlay.MaxRunSegments { // two runs, of which one leaves
			single := f.Next(1000)
			setECN(single, packet.NotECT)
			r.transmit(single)
		}
		b.room = 1
		r.pass(10 * time.Millisecond)
	}
	b.room = 1 << 30
	for r.tx.active() {
		r.pass(10 * time.Millisecond)
	}
	if dropped, used := r.Drops(drop.TXCongestion), r.tx.queue.buffers.Used; dropped == 0 || used != 0 {
		t.Errorf("%d packets were dropped, and %d bytes of buffers are used by an empty queue", dropped, used)
	}
}

// TestFullTransmitQueueDropsFromFattestFlow fills the queue with one flow while another sends little.
func TestFullTransmitQueueDropsFromFattestFlow(t *testing.T) {
	r, b := slowRig(t, 0)
	fat, thin := flow.Flow{Ends: lanetest.Out4}, flow.Flow{Ends: lanetest.Out6, ID: 1}
	offered := 0
	for r.Drops(drop.TXQueueFull) == 0 {
		r.transmit(fat.Train(40, 1400), thin.Next(8))
		offered++
	}
	if used := r.tx.queue.buffers.Used; used > r.tx.queue.limit+lane.BufferSizes[len(lane.BufferSizes)-1] {
		t.Errorf("the queue uses %d bytes, limit %d", used, r.tx.queue.limit)
	}
	b.room = 1 << 30
	var sent [][]byte
	for r.tx.active() {
		r.pass(time.Millisecond)
		sent = append(sent, lanetest.Unpadded(t, r.Sent())...)
	}
	var check flow.Checker
	check.Lossy = true
	thinSent := 0
	for _, p := range sent {
		if err := check.Take(flow.WithVnetHeader(p)); err != nil {
			t.Fatal(err)
		}
		if packet.Destination(p) == lanetest.Out6.Dst.Addr() {
			thinSent++
		}
	}
	if thinSent != offered {
		t.Errorf("%d packets of the thin flow were sent, want all %d", thinSent, offered)
	}
	if total := len(sent) + int(r.AllDrops()); total != offered*41 {
		t.Errorf("%d packets were sent or dropped, want %d", total, offered*41)
	}
}

// TestHeldRunsLeaveRoomForQueue has more full send buffers, each with a run that it refused, than the limit of the queue has room for.
func TestHeldRunsLeaveRoomForQueue(t *testing.T) {
	r, _ := slowRig(t, 0)
	r.tx.queue.limit = 512 << 10
	var sources []uint8
	for s := range uint8(16) {
		sources = append(sources, 1+s)
	}
	r.Peer.Spread.Store(lane.NewSpread(sources))
	flows := make([]flow.Flow, len(sources))
	for i := range flows {
		flows[i] = flow.Flow{Ends: lanetest.Out4, ID: uint32(i)}
		flows[i].Src = netip.AddrPortFrom(lanetest.Out4.Src.Addr(), 1000+uint16(i))
		r.transmit(flows[i].Train(40, 1400))
	}
	if held := len(r.tx.out.held.list); held != len(sources) {
		t.Fatalf("%d runs are held, want one of each of %d sources", held, len(sources))
	}
	const packets = 100
	for range packets {
		r.transmit(flows[0].Next(100))
	}
	if n, dropped := r.tx.queue.Len(), r.Drops(drop.TXQueueFull); n != packets || dropped != 0 {
		t.Errorf("%d packets wait and %d were dropped, want %d and 0", n, dropped, packets)
	}
}

func TestDetachedPortDropsWhatWaits(t *testing.T) {
	r, _ := slowRig(t, 0)
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Train(4, 1000))
	r.transmit(f.Train(3, 1000))
	r.tx.out.lane.Conn.Store(nil)
	r.pass(time.Millisecond)
	if n := r.Drops(drop.TXDown); n != 7 || r.tx.active() {
		t.Errorf("%d packets were dropped, want 7; the queue is active: %v", n, r.tx.active())
	}
}

// TestExpiredSessionStagesWhatWaits ends the session while trains wait.
func TestExpiredSessionStagesWhatWaits(t *testing.T) {
	r, b := slowRig(t, 0)
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Train(4, 1000)) // sealed
	r.transmit(f.Next(100), f.Train(3, 1000))
	r.Peer.Current.Store(nil)
	b.room = 100
	r.pass(time.Millisecond)
	if len(r.Owner.Staged) != 2 || len(r.Sent()) != 4 {
		t.Errorf("%d trains are staged, want 2", len(r.Owner.Staged))
	}
}

// TestExpiredSessionStagesNoDroppedPackets ends the session after CoDel has dropped the first packets of a train.
func TestExpiredSessionStagesNoDroppedPackets(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: lanetest.Out4}
	train := f.Train(5, 1000)
	r.Peer.Current.Store(nil)
	r.tx.sendElement(&txElement{peer: r.Peer, train: train, segments: 5, skip: 2}, r.tx.out.batch.slots[0])
	lanetest.SamePackets(t, lanetest.PacketsOf(t, r.Owner.Staged...), lanetest.PacketsOf(t, train)[2:])
}

// TestRestOfTrainLeavesIfSessionExistsWhenStaged has a session that begins after one packet of a train was staged, whose first two were dropped.
func TestRestOfTrainLeavesIfSessionExistsWhenStaged(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: lanetest.Out4}
	train := f.Train(5, 1000)
	want := lanetest.PacketsOf(t, train)
	r.Peer.Current.Store(nil)
	r.Owner.OnStage = func() *session.Keypair {
		if len(r.Owner.Staged) == 0 {
			return nil
		}
		return r.Keys
	}
	r.tx.sendElement(&txElement{peer: r.Peer, train: train, segments: 5, skip: 2}, r.tx.out.batch.slots[0])
	r.tx.out.flush()
	lanetest.SamePackets(t, lanetest.PacketsOf(t, r.Owner.Staged...), want[2:3])
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), want[3:])
}

func TestLargestTrainWaits(t *testing.T) {
	r, b := slowRig(t, 0)
	f := flow.Flow{Ends: lanetest.Out4}
	r.transmit(f.Next(100))
	const headers = packet.IPv4HeaderLen + packet.TCPHeaderLen
	train := f.TCPTrain(100, 65535-headers, make([]byte, 65535-headers))
	if len(train) != tun.MaxTrain {
		t.Fatalf("the train has %d bytes, want %d", len(train), tun.MaxTrain)
	}
	r.transmit(train)
	b.room = 100
	r.pass(time.Millisecond)
	if r.tx.active() || r.Drops(drop.TXTooBig) != 1 {
		t.Errorf("the train waits still, or was sent: %d drops", r.AllDrops())
	}
}

// TestSendGroupChangeMovesWhatWaits gives the peer another send group while the former one's buffer is full, and stays so. A run is held
// then, alone or with trains that wait.
func TestSendGroupChangeMovesWhatWaits(t *testing.T) {
	for _, waiting := range []int{0, 1} {
		r, _ := slowRig(t, 0)
		f := flow.Flow{Ends: lanetest.Out4}
		var want [][]byte
		send := func(train []byte) {
			want = append(want, lanetest.PacketsOf(t, train)...)
			r.transmit(train)
		}
		send(f.Train(4, 1000)) // held
		for range waiting {
			send(f.Train(5, 1000))
		}
		r.Peer.SendGroup.Store(1)
		send(f.Train(3, 1000))
		if sent := len(r.Conn.Taken()); sent != 0 {
			t.Fatalf("%d trains wait: %d runs were sent before older ones", waiting, sent)
		}
		r.pass(time.Millisecond)
		send(f.Next(100))
		r.pass(time.Millisecond)
		lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), want)
	}
}

// TestSendGroupChangeWithinBatchKeepsOrder gives the peer another send group between two trains of one batch.
func TestSendGroupChangeWithinBatchKeepsOrder(t *testing.T) {
	r, b := slowRig(t, 0)
	f := flow.Flow{Ends: lanetest.Out4}
	trains := [][]byte{f.Train(3, 1000), f.Train(3, 1000)}
	r.tx.out.now, r.tx.mtu = r.Now, lane.DefaultMTU
	for i, train := range trains {
		r.tx.addTrain(r.tx.out.batch.slots[i], copy(r.tx.out.batch.bufs[i], train), 1, false)
		r.Peer.SendGroup.Store(1)
	}
	r.tx.out.flush()
	b.room = 100
	r.pass(time.Millisecond)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, trains...))
}

// TestTrainsOfWaitingPeerCountOnceForTheirSource compares the load of a source with that of a lane without a queue.
func TestTrainsOfWaitingPeerCountOnceForTheirSource(t *testing.T) {
	load := func(active bool) (bytes int) {
		r, _ := slowRig(t, 0)
		other, _ := r.NewPeer("10.0.0.3/32")
		keys, _ := r.NewSession(other, true)
		other.Current.Store(keys)
		other.SendGroup.Store(1)
		other.Spread.Store(lane.NewSpread([]uint8{1}))
		if active {
			r.transmit((&flow.Flow{Ends: lanetest.Out4}).Next(100))
		}
		f := flow.Flow{Ends: lanetest.Out4, ID: 1}
		f.Dst = netip.MustParseAddrPort("10.0.0.3:2000")
		r.transmit(f.Next(1000))
		loads := other.Spread.Load().Loads
		return int(loads.Bytes(0, r.Now))
	}
	if idle, active := load(false), load(true); idle == 0 || active != idle {
		t.Errorf("a packet counts %d bytes beside a queue, %d without", active, idle)
	}
}

// TestNewFlowTakesPlaceOfItsPeersLargest fills all places that a flow may take with flows of two peers.
func TestNewFlowTakesPlaceOfItsPeersLargest(t *testing.T) {
	r, _ := slowRig(t, 0)
	q := &r.tx.queue
	mine, others := r.Peer, r.Shared.NewPeer(&lanetest.Owner{})
	r.transmit((&flow.Flow{Ends: lanetest.Out4}).Next(100)) // the buffer is full from here on
	r.transmit((&flow.Flow{Ends: lanetest.Out4}).Next(100)) // creates the queue
	push := func(p *lane.Peer, hash uint32, bytes int) {
		at, _ := q.place(waitingFlow{p, hash})
		q.flows[at] = waitingFlow{p, hash}
		q.Push(at, txElement{peer: p, segments: 1, buffer: q.buffers.Take(bytes)}, bytes, r.Now)
	}
	first := q.flows[slices.IndexFunc(q.flows, func(f waitingFlow) bool { return f.peer != nil })].hash + 2*txProbes
	for i := range uint32(txProbes) {
		p, bytes := others, 9000
		if i%2 == 1 {
			p, bytes = mine, 100+int(i)
		}
		push(p, first+i*txFlows, bytes)
	}
	at, waits := q.place(waitingFlow{mine, first - txFlows})
	if got := q.Backlog(at); waits || got != 100+txProbes-1 {
		t.Errorf("the flow takes a place with %d bytes, want the largest of its peer, %d", got, 100+txProbes-1)
	}
	if at, _ = q.place(waitingFlow{&lane.Peer{}, first - txFlows}); q.Backlog(at) != 9000 {
		t.Errorf("the flow of a third peer takes a place with %d bytes, want 9000", q.Backlog(at))
	}
	drops := r.Drops(drop.TXQueueFull)
	r.tx.clearPlace(at)
	if q.Backlog(at) != 0 || r.Drops(drop.TXQueueFull) != drops+1 {
		t.Errorf("%d bytes are left of the flow that makes room, %d packets were dropped", q.Backlog(at), r.Drops(drop.TXQueueFull)-drops)
	}
}

// TestFlowsThatWaitShareNoPlace has flows to a blocked peer in all places but a few, and one to another peer.
func TestFlowsThatWaitShareNoPlace(t *testing.T) {
	r, _ := slowRig(t, 0)
	other, _ := r.NewPeer("10.0.0.3/32")
	keys, _ := r.NewSession(other, true)
	other.Current.Store(keys)
	other.SendGroup.Store(1)
	for port := range uint16(2 * txFlows) {
		f := flow.Flow{Ends: lanetest.Out4}
		f.Src = netip.AddrPortFrom(f.Src.Addr(), 1000+port)
		r.transmit(f.Next(8))
	}
	if r.Drops(drop.TXQueueFull) == 0 || r.tx.queue.Len() < txFlows/2 {
		t.Errorf("%d flows wait, %d packets were dropped, want half of all places taken, and drops", r.tx.queue.Len(), r.Drops(drop.TXQueueFull))
	}
	for port := range uint16(200) {
		f := flow.Flow{Ends: lanetest.Out4}
		f.Src, f.Dst = netip.AddrPortFrom(f.Src.Addr(), 1000+port), netip.MustParseAddrPort("10.0.0.3:2000")
		r.transmit(f.Next(8))
	}
	if got := other.Packets().Tx; got != 200 {
		t.Errorf("%d packets were sent to the other peer, want 200", got)
	}
}
