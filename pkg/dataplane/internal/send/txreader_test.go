// SPDX-License-Identifier: Apache-2.0

package send

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// flowFrom returns a flow to the rig's peer from a port.
func flowFrom(port uint16) *flow.Flow {
	ends := lanetest.Out4
	ends.Src = netip.AddrPortFrom(lanetest.Out4.Src.Addr(), port)
	return &flow.Flow{Ends: ends, ID: uint32(port)}
}

// sourcePort returns the source port of an IPv4 packet without options.
func sourcePort(ip []byte) uint16 { return uint16(ip[20])<<8 | uint16(ip[21]) }

// behind lets the TUN queue have a backlog: it was last found empty some time ago.
func (r *rig) behind() { r.Now += backlogTime }

func TestSparseFlowsPassBacklogInTUNQueue(t *testing.T) {
	r := newRig(t)
	bulk, sparse := flowFrom(1), flowFrom(2)
	for range 10 {
		r.wait(bulk.Train(40, 1000))
	}
	r.behind()
	r.carry(sparse.Next(100))
	sent := lanetest.Unpadded(t, r.Sent())
	if len(sent) != 10*40+1 {
		t.Fatalf("got %d packets, want 401", len(sent))
	}
	if at := slices.IndexFunc(sent, func(p []byte) bool { return sourcePort(p) == 2 }); at > 40 {
		t.Errorf("%d packets were sent before that of the sparse flow, want at most a train of 40", at)
	}
}

func TestBulkWithoutBacklogIsNotReadAhead(t *testing.T) {
	r := newRig(t)
	bulk, other := flowFrom(1), flowFrom(2)
	r.carry(bulk.Next(100))
	for range 5 {
		r.wait(bulk.Train(40, 1000), other.Train(40, 1000), bulk.Next(100))
	}
	for n := r.tx.reader.tryRead(r.tx.out.batch); n > 0; n = r.tx.reader.tryRead(r.tx.out.batch) {
		if r.tx.reader.waits() {
			t.Fatal("trains were read ahead")
		}
		r.tx.sendBatch(n)
	}
}

func TestReadingAheadEndsWithBacklog(t *testing.T) {
	r := newRig(t)
	bulk := flowFrom(1)
	r.behind()
	r.carry(bulk.Train(40, 1000), bulk.Train(40, 1000))
	r.wait(bulk.Train(40, 1000), bulk.Train(40, 1000))
	if n := r.tx.reader.tryRead(r.tx.out.batch); n != 1 || r.tx.reader.waits() {
		t.Errorf("got %d trains and reading ahead %v, want 1 and false", n, r.tx.reader.waits())
	}
}

// TestBacklogLeavesTUNQueue has a burst in the TUN queue, from which one read takes all.
func TestBacklogLeavesTUNQueue(t *testing.T) {
	r := newRig(t)
	f := flowFrom(1)
	var want [][]byte
	for range readAheadTrains {
		train := f.Next(100)
		want = append(want, train[offload.VnetHdrLen:])
		r.wait(train)
	}
	r.behind()
	r.tx.sendBatch(r.tx.reader.tryRead(r.tx.out.batch))
	if n := r.Lane.Queue.TryRead([][]byte{make([]byte, tun.MaxTrain)}, []int{0}); n != 0 {
		t.Error("packets are left in the TUN queue")
	}
	r.carry()
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), want)
	if n := r.AllDrops(); n != 0 {
		t.Errorf("got %d drops, want 0", n)
	}
}

// TestFloodInTUNQueueTakesNoRoomFromOtherFlows offers twice as many packets of one flow as the lane sends.
func TestFloodInTUNQueueTakesNoRoomFromOtherFlows(t *testing.T) {
	r := newRig(t)
	flood, other := flowFrom(1), flowFrom(2)
	const reads = 2 * readAheadTrains / Slots
	for range reads {
		for range 2 * Slots {
			r.wait(flood.Next(1000))
		}
		r.wait(other.Next(100))
		r.behind()
		r.tx.sendBatch(r.tx.reader.tryRead(r.tx.out.batch))
	}
	r.carry()
	sent, own := lanetest.Unpadded(t, r.Sent()), 0
	for _, p := range sent {
		if sourcePort(p) == 2 {
			own++
		}
	}
	dropped := r.Drops(drop.TXQueueFull)
	if own != reads || dropped == 0 || len(sent)-own+int(r.AllDrops()) != reads*2*Slots {
		t.Errorf("%d of %d packets of the other flow were sent, and %d of the flood with %d dropped", own, reads, len(sent)-own, dropped)
	}
	if n := r.Peer.Packets().TxDrops; n != r.AllDrops() {
		t.Errorf("%d drops are counted for the peer, want %d", n, r.AllDrops())
	}
}

// TestTrainsBeyondBytesDelayNoSparseFlow has more bytes of trains in the TUN queue than a lane reads ahead, and a packet behind them.
func TestTrainsBeyondBytesDelayNoSparseFlow(t *testing.T) {
	r := newRig(t)
	bulk, sparse := flowFrom(1), flowFrom(2)
	const trains = 2 * readAheadBytes / 60000
	for range trains {
		r.wait(bulk.Train(60, 1000))
	}
	ping := sparse.Next(100)
	r.wait(ping)
	r.behind()
	r.tx.sendBatch(r.tx.reader.tryRead(r.tx.out.batch))
	if n := r.tx.reader.buffers.Used; n > readAheadBytes+2*lane.SlotLen {
		t.Errorf("%d bytes were read ahead", n)
	}
	r.tx.sendBatch(r.tx.reader.tryRead(r.tx.out.batch))
	sent := lanetest.Unpadded(t, r.Sent())
	if n := len(sent); n > 2*60+1 || sourcePort(sent[n-1]) != 2 && sourcePort(sent[60]) != 2 {
		t.Errorf("a packet waits behind more than %d others", n)
	}
	r.carry()
	dropped := r.Drops(drop.TXQueueFull)
	if n := len(sent) + len(r.Sent()); dropped == 0 || dropped%60 != 0 || n+int(r.AllDrops()) != 60*trains+1 {
		t.Errorf("%d packets were sent and %d dropped, want %d together", n, r.AllDrops(), 60*trains+1)
	}
	if n := r.Peer.Packets().TxDrops; n != r.AllDrops() {
		t.Errorf("%d drops are counted for the peer, want %d", n, r.AllDrops())
	}
}

// TestManyLanesShareMemoryOfQueues has more lanes than may have the largest queues.
func TestManyLanesShareMemoryOfQueues(t *testing.T) {
	for lanes, want := range map[int]int{1: readAheadBytes, 8: readAheadBytes, 16: 4 << 20, 32: minTXQueue, 64: minTXQueue} {
		l := lane.New(lane.NewShared(lane.NewClock(), nil, nil, lanes, false), 0, nil, nil)
		if got := New(l, 1).reader.limit; got != want {
			t.Errorf("each of %d lanes reads %d bytes ahead, want %d", lanes, got, want)
		}
	}
}

// TestStandingBacklogIsSignalled offers two flows more than the lane carries, for longer than CoDel's interval.
func TestStandingBacklogIsSignalled(t *testing.T) {
	for name, tt := range map[string]struct {
		train bool
		ecn   packet.ECN
	}{
		"trains": {true, packet.NotECT}, "packets": {false, packet.NotECT},
		"trains with ECN": {true, packet.ECT0}, "packets with ECN": {false, packet.ECT0},
	} {
		r := newRig(t)
		f, offered, sent, marked := flowFrom(1), 0, 0, 0
		for range 30 {
			r.Now += int64(lane.QueueParams.Interval / 10)
			for i := range 2 * Slots { // a lane sends as many packets as it has slots, or one train
				train := lanetest.MarkedElement(f.Next(1000), tt.ecn)
				if tt.train {
					train = lanetest.MarkedElement(f.Train(40, 1000), tt.ecn)
				}
				offered += len(lanetest.PacketsOf(t, train))
				if r.wait(train); tt.train && i > 0 {
					break
				}
			}
			r.tx.sendBatch(r.tx.reader.tryRead(r.tx.out.batch))
		}
		r.carry()
		for _, p := range lanetest.Unpadded(t, r.Sent()) {
			if sent++; packet.ECNOf(p) == packet.CE {
				marked++
			}
		}
		dropped := r.Drops(drop.TXCongestion)
		if r.Lane.Snapshot().TxMarks != uint64(marked) || uint64(sent)+r.AllDrops() != uint64(offered) {
			t.Errorf("%s: %d of %d packets were sent, %d of them marked, and %d dropped", name, sent, offered, marked, r.AllDrops())
		}
		if tt.ecn == packet.NotECT && (dropped == 0 || marked > 0) || tt.ecn != packet.NotECT && (dropped > 0 || marked == 0) {
			t.Errorf("%s: %d packets were dropped and %d marked", name, dropped, marked)
		}
	}
}

// TestReadingAheadKeepsOrderWithinFlows compares each flow of any mix with what was sent.
func TestReadingAheadKeepsOrderWithinFlows(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r := newRig(t)
	flows := make([]*flow.Flow, 40)
	for i := range flows {
		flows[i] = flowFrom(uint16(i))
	}
	for range 20 {
		r.behind()
		want := map[uint16][][]byte{}
		for range 1 + rng.IntN(200) {
			i := rng.IntN(len(flows))
			train := flows[i].Next(8 + rng.IntN(1000))
			if i%4 == 0 {
				train = flows[i].Train(2+rng.IntN(40), 1000)
			}
			want[uint16(i)] = append(want[uint16(i)], lanetest.PacketsOf(t, train)...)
			r.wait(train)
		}
		r.carry()
		got := map[uint16][][]byte{}
		for _, p := range lanetest.Unpadded(t, r.Sent()) {
			got[sourcePort(p)] = append(got[sourcePort(p)], p)
		}
		for port := range want {
			lanetest.SamePackets(t, got[port], want[port])
		}
	}
	if n := r.AllDrops(); n != 0 {
		t.Errorf("got %d drops, want 0", n)
	}
	if r.tx.reader.queue == nil {
		t.Error("nothing was read ahead")
	}
}

func TestReadingAheadAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.Conn.Silent = true
	bulk, sparse := flowFrom(1), flowFrom(2)
	train, single := bulk.Train(40, 1000), sparse.Next(100)
	pass := func() {
		r.behind()
		r.wait(train, train, train, single)
		r.carry(train)
		if r.tx.reader.queue == nil {
			t.Fatal("nothing was read ahead")
		}
	}
	pass()
	if n := testing.AllocsPerRun(20, pass); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestMalformedTrainsAreReadAhead has trains without a whole header among others.
func TestMalformedTrainsAreReadAhead(t *testing.T) {
	r := newRig(t)
	bulk := flowFrom(1)
	r.behind()
	r.carry(bulk.Train(40, 1000), []byte{1}, make([]byte, packet.IPv4HeaderLen), bulk.Train(40, 1000))
	if n := len(r.Sent()); n != 80 {
		t.Errorf("got %d packets, want 80", n)
	}
	if n := r.AllDrops(); n != 2 {
		t.Errorf("got %d drops, want 2", n)
	}
}
