// SPDX-License-Identifier: Apache-2.0

package send

import (
	"math"
	mathrand "math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestWorkersSealSameBytesAsLane compares messages, counters included, with those sealed without workers.
func TestWorkersSealSameBytesAsLane(t *testing.T) {
	alone, r := newHastyRig(t, workpool.Config{}), newHastyRig(t, lanetest.ManyWorkers())
	random := mathrand.New(mathrand.NewPCG(1, 2))
	f := flow.Flow{Ends: lanetest.Out4}
	for range 100 {
		elements := lanetest.RandomElements(random, &f)
		alone.carry(elements...)
		r.carry(elements...)
		want, got := alone.SentRaw(), r.SentRaw()
		sameCounters(t, got, want)
		for i := range got {
			want[i], got[i] = alone.Open(want[i]), r.Open(got[i])
		}
		lanetest.SamePackets(t, got, want)
	}
	if n := r.AllDrops(); n > 0 {
		t.Errorf("got %d drops, want 0", n)
	}
	if got, want := r.Lane.Snapshot(), alone.Lane.Snapshot(); got.TxBytes != want.TxBytes || got.TxTrains != want.TxTrains {
		t.Errorf("got %+v, want %+v", got, want)
	}
	lanetest.Offered(t, r.Lane.SealJobs.Stats())
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

// TestSessionsMayEndWhileWorkersRun wipes and replaces keys while trains are in flight. Packets leave in order, and each one
// is sent or counted as dropped for lack of a session.
func TestSessionsMayEndWhileWorkersRun(t *testing.T) {
	r := newHastyRig(t, lanetest.ManyWorkers())
	random := mathrand.New(mathrand.NewPCG(5, 6))
	remotes := map[uint32]*session.Keypair{}
	f := flow.Flow{Ends: lanetest.Out4}
	packets, left := 0, 0
	for range 60 {
		ours, theirs := r.NewSession(r.Peer, true)
		remotes[ours.Remote()] = theirs
		r.Peer.Current.Store(ours)
		elements := lanetest.RandomElements(random, &f)
		for _, e := range elements {
			packets += len(lanetest.PacketsOf(t, e))
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
		for _, msg := range r.SentRaw() {
			r.Remote = remotes[wire.ReceiverIndex(msg)]
			r.Open(msg)
			if c := int64(wire.Counter(msg)); c <= last {
				t.Fatalf("counter %d behind %d", c, last)
			} else {
				last = c
			}
			left++
		}
	}
	if dropped := int(r.Drops(drop.TXNoSession)); left+dropped != packets {
		t.Errorf("%d left and %d were dropped of %d", left, dropped, packets)
	}
	lanetest.Offered(t, r.Lane.SealJobs.Stats())
}

// TestSealedTrainLeavesBeforeNextIsSealed lets a worker seal a train while the lane continues to read.
func TestSealedTrainLeavesBeforeNextIsSealed(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	if err := r.TUN.Inject(0, (&flow.Flow{Ends: lanetest.Out4}).Train(45, 1380)); err != nil {
		t.Fatal(err)
	}
	r.tx.addTrains(r.tx.reader.tryRead(r.tx.out.batch))
	u := r.tx.out.batch
	r.tx.out.batch = r.tx.out.spareBatch()
	r.tx.out.submit(u)
	expect.Eventually(t, "workers have sealed the oldest batch", r.tx.out.jobs.OldestDone)
	r.tx.out.sendSealed()
	if r.Conn.Count != 45 || r.tx.out.jobs.Pending() != 0 {
		t.Errorf("%d messages were sent", r.Conn.Count)
	}
}

func TestSmallBurstsUseNoWorkers(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	f := flow.Flow{Ends: lanetest.Out4}
	for range 200 {
		r.carry(f.Train(45, 1380), f.Train(45, 1380))
		r.carry(f.Next(100), f.Next(100))
	}
	if s := r.Lane.SealJobs.Stats(); s.Submitted != 0 {
		t.Errorf("got %+v, want Submitted 0", s)
	}
}

// TestWorkersSealBatchesOfSmallPackets needs no train.
func TestWorkersSealBatchesOfSmallPackets(t *testing.T) {
	r := newHastyRig(t, workpool.Config{Workers: 1})
	r.tx.reader.emptied = math.MaxInt64 // however slow the machine is, no backlog is read ahead, and so none marked
	f := flow.Flow{Ends: lanetest.Out4}
	var elements [][]byte
	for range readAheadTrains {
		elements = append(elements, f.Next(500))
	}
	r.carry(elements...)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, elements...))
	lanetest.Offered(t, r.Lane.SealJobs.Stats())
}

func TestSealingWorkersAllocateNothing(t *testing.T) {
	r := newHastyRig(t, workpool.Config{Workers: 2})
	r.Conn.Silent = true
	train := (&flow.Flow{Ends: lanetest.Out4}).Train(45, 1380)
	r.carry(train, train, train, train, train, train)
	for range lane.MaxJobs { // batches are allocated on first use, which may be late
		r.tx.out.spares = append(r.tx.out.spares, newTxBatch(Slots))
		r.tx.out.spares[len(r.tx.out.spares)-1].grow()
	}
	if n := lanetest.LeastAllocs(50, func() { r.carry(train, train, train, train, train, train) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	lanetest.Offered(t, r.Lane.SealJobs.Stats())
}
