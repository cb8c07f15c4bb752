// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"crypto/rand"
	"math"
	mathrand "math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// manyWorkers are more than there are cores.
func manyWorkers() workpool.Config { return workpool.Config{Workers: 2*runtime.NumCPU() + 1} }

// hasty advances the clock with each batch, so that a backoff for lack of cores ends soon.
func (r *rig) hasty() *rig {
	r.engine.cfg.Clock = func() int64 {
		r.now += int64(time.Millisecond)
		return r.now
	}
	return r
}

// carry queues trains in the TUN and lets the transmitter read them.
func (r *rig) carry(elements ...[]byte) {
	r.tb.Helper()
	for _, e := range elements {
		if err := r.tun.Inject(0, e); err != nil {
			r.tb.Fatal(err)
		}
	}
	for n := 1; n > 0; {
		if n = r.tx.reader.tryRead(r.tx.txBatch); n > 0 {
			r.tx.sendBatch(n)
		}
	}
}

// sentRaw returns the messages that were sent.
func (r *rig) sentRaw() (all [][]byte) {
	for _, run := range r.conn.taken() {
		all = append(all, run...)
	}
	return all
}

// offered fails the test unless workers ran jobs.
func offered(tb testing.TB, s workpool.Stats) {
	tb.Helper()
	if s.Submitted == 0 || s.Done+s.ByLane != s.Submitted {
		tb.Errorf("got %+v", s)
	}
	tb.Logf("%+v", s)
}

// randomElements are trains and small packets of f, in any order.
func randomElements(random *mathrand.Rand, f *flow.Flow) (elements [][]byte) {
	for range 1 + random.IntN(24) {
		if random.IntN(4) == 0 {
			elements = append(elements, f.Next(100))
		} else {
			elements = append(elements, f.Train(2+random.IntN(44), 1380))
		}
	}
	return elements
}

// TestWorkersSealSameBytesAsLane compares messages, counters included, with those sealed without workers.
func TestWorkersSealSameBytesAsLane(t *testing.T) {
	alone, r := newRig(t).hasty(), newRigWithWorkers(t, manyWorkers()).hasty()
	random := mathrand.New(mathrand.NewPCG(1, 2))
	f := flow.Flow{Ends: out4}
	for range 100 {
		elements := randomElements(random, &f)
		alone.carry(elements...)
		r.carry(elements...)
		want, got := alone.sentRaw(), r.sentRaw()
		sameCounters(t, got, want)
		for i := range got {
			want[i], got[i] = alone.open(want[i]), r.open(got[i])
		}
		samePackets(t, got, want)
	}
	if n := r.allDrops(); n > 0 {
		t.Errorf("got %d drops, want 0", n)
	}
	if got, want := r.engine.Stats().Lanes[0], alone.engine.Stats().Lanes[0]; got.TxBytes != want.TxBytes || got.TxTrains != want.TxTrains {
		t.Errorf("got %+v, want %+v", got, want)
	}
	offered(t, r.engine.lanes[0].sealJobs.Stats())
}

// sameCounters fails unless both have the same consecutive counters.
func sameCounters(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d messages, want %d", len(got), len(want))
	}
	for i := range got {
		c := wire.Counter(got[i])
		if c != wire.Counter(want[i]) || i > 0 && c != wire.Counter(got[i-1])+1 {
			t.Fatalf("message %d has counter %d, want %d", i, c, wire.Counter(want[i]))
		}
	}
}

// TestWorkersOpenSamePacketsAsLane receives trains (valid, forged, replayed, of unknown sessions), small
// packets and keepalives, and compares the result with that of a lane without workers.
func TestWorkersOpenSamePacketsAsLane(t *testing.T) {
	alone, r := newRig(t).hasty(), newRigWithWorkers(t, manyWorkers()).hasty()
	random := mathrand.New(mathrand.NewPCG(3, 4))
	f := flow.Flow{Ends: in4}
	for range 100 {
		n := 1 + random.IntN(2*maxJobs)
		for i := range n {
			kind, offset := random.IntN(9), random.IntN(1400)
			packets := packetsOf(t, f.Train(2+random.IntN(43), 1380))
			if kind == 0 {
				packets[len(packets)/2][40] ^= 1 // its checksum is wrong
			}
			for _, rig := range []*rig{alone, r} {
				run, size := rig.damaged(kind, offset, packets)
				rig.arriveFrom(i, there, run, size)
			}
		}
		if random.IntN(3) == 0 && n > 2 { // a whole train once more, next to itself
			for _, rig := range []*rig{alone, r} {
				d := &rig.rx.in[n-2]
				rig.arriveFrom(n-1, there, d.Buf[:d.N], d.SegSize)
			}
		}
		alone.rx.batch(n)
		r.rx.batch(n)
		if want, got := alone.delivered(), r.delivered(); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("the %d trains differ from the %d expected", len(got), len(want))
		}
	}
	for reason := drop.None + 1; reason < drop.Count; reason++ {
		if got, want := r.drops(reason), alone.drops(reason); got != want {
			t.Errorf("%v: got %d drops, want %d", reason, got, want)
		}
	}
	offered(t, r.engine.lanes[0].openJobs.Stats())
}

// damaged returns packets as a run of the peer, damaged in a random way or valid.
func (r *rig) damaged(kind, offset int, packets [][]byte) (run []byte, size int) {
	run, size = r.seal(packets...)
	switch kind {
	case 1: // small
		return r.seal(packets[0])
	case 2: // forged
		run[len(run)/2+offset%100] ^= 1
	case 3: // a message repeated
		copy(run[size:], run[:size])
	case 4: // unknown receiver index
		run[size+4] ^= 1
	case 5: // a keepalive behind it
		run = append(run, r.message(r.remote, nil)...)
	}
	return run, size
}

// TestSessionsMayEndWhileWorkersRun wipes and replaces keys while trains are in flight. Packets leave in order, and each one
// is sent or counted as dropped for lack of a session.
func TestSessionsMayEndWhileWorkersRun(t *testing.T) {
	r := newRigWithWorkers(t, manyWorkers()).hasty()
	random := mathrand.New(mathrand.NewPCG(5, 6))
	remotes := map[uint32]*session.Keypair{}
	f := flow.Flow{Ends: out4}
	packets, left := 0, 0
	for range 60 {
		ours, theirs := r.newSession(r.peer, true)
		remotes[ours.Remote()] = theirs
		r.peer.Current.Store(ours)
		elements := randomElements(random, &f)
		for _, e := range elements {
			packets += len(packetsOf(t, e))
		}
		var wiper sync.WaitGroup
		wiper.Go(func() {
			for range random.IntN(50) {
				runtime.Gosched()
			}
			ours.Wipe()
		})
		r.carry(elements...)
		wiper.Wait()
		last := int64(-1)
		for _, msg := range r.sentRaw() {
			r.remote = remotes[wire.ReceiverIndex(msg)]
			r.open(msg)
			if c := int64(wire.Counter(msg)); c <= last {
				t.Fatalf("counter %d behind %d", c, last)
			} else {
				last = c
			}
			left++
		}
	}
	if dropped := int(r.drops(drop.TXNoSession)); left+dropped != packets {
		t.Errorf("%d left and %d were dropped of %d", left, dropped, packets)
	}
	offered(t, r.engine.lanes[0].sealJobs.Stats())
}

// TestReceivedTrainsOfWipedSessionAreDropped wipes the keys before or while workers open the trains.
func TestReceivedTrainsOfWipedSessionAreDropped(t *testing.T) {
	r := newRigWithWorkers(t, manyWorkers()).hasty()
	f := flow.Flow{Ends: in4}
	packets := 0
	for round := range 40 {
		r.keys, r.remote = r.newSession(r.peer, true)
		for i := range maxJobs {
			run, size := r.seal(packetsOf(t, f.Train(20, 1380))...)
			r.arriveFrom(i, there, run, size)
			packets += 20
		}
		keys := r.keys
		var wiper sync.WaitGroup
		wiper.Go(func() {
			for range round {
				runtime.Gosched()
			}
			keys.Wipe()
		})
		r.rx.batch(maxJobs)
		wiper.Wait()
		r.delivered()
	}
	delivered := int(r.engine.Stats().Lanes[0].RxPackets)
	if expired := int(r.drops(drop.RXExpired)); delivered+expired != packets {
		t.Errorf("%d delivered and %d expired of %d", delivered, expired, packets)
	}
	offered(t, r.engine.lanes[0].openJobs.Stats())
}

// TestPortsMayChangeWhileWorkersRun attaches and detaches ports while the host sends, and ends with trains in flight.
func TestPortsMayChangeWhileWorkersRun(t *testing.T) {
	c, err := workpool.Start(manyWorkers())
	if err != nil {
		t.Fatal(err)
	}
	device := tun.NewFake(tun.FakeConfig{Depth: 64, Features: tun.Features{TSO: true, USO: true}})
	var now atomic.Int64
	r := &rig{tb: t, now: 1, tun: device}
	r.engine = New(Config{
		Device: device, Control: &control{}, Rand: rand.Reader, Pool: c,
		Clock: func() int64 { return now.Add(int64(time.Millisecond)) },
	})
	r.peer, _ = r.newPeer("10.0.0.2/32")
	r.keys, r.remote = r.newSession(r.peer, true)
	r.peer.Current.Store(r.keys)
	r.engine.Start()
	var host sync.WaitGroup
	train := (&flow.Flow{Ends: out4}).Train(40, 1380)
	var ended atomic.Bool
	host.Go(func() {
		for !ended.Load() {
			if device.Inject(0, train) != nil {
				runtime.Gosched()
			}
		}
	})
	for range 20 {
		port, far := underlay.Pipe(1)
		if err := r.engine.Attach(port); err != nil {
			t.Fatal(err)
		}
		before := r.engine.Stats().Lanes[0].TxRuns
		expect.Eventually(t, "the lane has sent 20 runs", func() bool { return r.engine.Stats().Lanes[0].TxRuns > before+20 })
		if err := r.engine.Detach(); err != nil {
			t.Fatal(err)
		}
		_ = far.Close()
	}
	ended.Store(true)
	_ = device.Close()
	r.engine.Wait()
	c.Close()
	host.Wait()
	if s := r.engine.lanes[0].sealJobs.Stats(); s.Done+s.ByLane != s.Submitted {
		t.Errorf("got %+v", s)
	}
}

// TestSealedTrainLeavesBeforeNextIsSealed lets a worker seal a train while the lane continues to read.
func TestSealedTrainLeavesBeforeNextIsSealed(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	if err := r.tun.Inject(0, (&flow.Flow{Ends: out4}).Train(45, 1380)); err != nil {
		t.Fatal(err)
	}
	r.tx.addTrains(r.tx.reader.tryRead(r.tx.txBatch))
	u := r.tx.txBatch
	r.tx.txBatch = r.tx.spareBatch()
	r.tx.submit(u)
	expect.Eventually(t, "workers have sealed the oldest batch", r.tx.jobs.OldestDone)
	r.tx.sendSealed()
	if r.conn.count != 45 || r.tx.jobs.Pending() != 0 {
		t.Errorf("%d messages were sent", r.conn.count)
	}
}

func TestSmallBurstsUseNoWorkers(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	f := flow.Flow{Ends: out4}
	for range 200 {
		r.carry(f.Train(45, 1380), f.Train(45, 1380))
		r.carry(f.Next(100), f.Next(100))
	}
	if s := r.engine.lanes[0].sealJobs.Stats(); s.Submitted != 0 {
		t.Errorf("got %+v, want Submitted 0", s)
	}
}

// TestWorkersSealBatchesOfSmallPackets needs no train.
func TestWorkersSealBatchesOfSmallPackets(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1}).hasty()
	r.tx.reader.emptied = math.MaxInt64 // however slow the machine is, no backlog is read ahead, and so none marked
	f := flow.Flow{Ends: out4}
	var elements [][]byte
	for range readAheadTrains {
		elements = append(elements, f.Next(500))
	}
	r.carry(elements...)
	samePackets(t, unpadded(t, r.sent()), packetsOf(t, elements...))
	offered(t, r.engine.lanes[0].sealJobs.Stats())
}

// leastAllocs is testing.AllocsPerRun, the least of up to three: it counts the allocations of all goroutines, and workers or a test before may
// be late.
func leastAllocs(runs int, f func()) float64 {
	n := testing.AllocsPerRun(runs, f)
	for range 2 {
		if n != 0 {
			n = min(n, testing.AllocsPerRun(runs, f))
		}
	}
	return n
}

func TestWorkersAllocateNothingPerTrain(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 2}).hasty()
	r.conn.silent = true
	train := (&flow.Flow{Ends: out4}).Train(45, 1380)
	r.carry(train, train, train, train, train, train)
	for range maxJobs { // batches are allocated on first use, which may be late
		r.tx.spares = append(r.tx.spares, newTxBatch(txSlots))
		r.tx.spares[len(r.tx.spares)-1].grow()
	}
	if n := leastAllocs(50, func() { r.carry(train, train, train, train, train, train) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	offered(t, r.engine.lanes[0].sealJobs.Stats())
	s := newSupply(t, r, 32*maxJobs)
	for i := range r.rx.ahead.jobs { // likewise, as long as no worker has a core
		r.rx.ahead.jobs[i].opened = make([]session.Message, maxOpenMessages)
	}
	for range 4 {
		s.arrive(maxJobs)
		r.rx.batch(maxJobs)
	}
	if n := leastAllocs(8, func() {
		s.arrive(maxJobs)
		r.rx.batch(maxJobs)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	offered(t, r.engine.lanes[0].openJobs.Stats())
}

// TestLaneUsesWorkersForBacklogOfBulk: one bulk element, or a first burst, is handled sooner without them.
func TestLaneUsesWorkersForBacklogOfBulk(t *testing.T) {
	for name, c := range map[string]struct {
		workers, bulk, backlog int
		want                   bool
	}{
		"backlog":         {1, 3, rxSlots, true},
		"two wait":        {1, 2, rxSlots, true},
		"one waits":       {1, 1, rxSlots, false},
		"none waits":      {1, 0, rxSlots, false},
		"first burst":     {1, 3, 0, false},
		"without workers": {0, 3, rxSlots, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigWithWorkers(t, workpool.Config{Workers: c.workers})
			r.rx.lane.openJobs.ReportBacklog(c.backlog)
			r.rx.queue.bulk, r.rx.ahead.enabled = c.bulk, !c.want
			if r.rx.reportBacklog(); r.rx.ahead.enabled != c.want {
				t.Errorf("got workers in use %v, want %v", r.rx.ahead.enabled, c.want)
			}
		})
	}
}
