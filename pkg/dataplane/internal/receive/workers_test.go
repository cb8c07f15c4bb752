// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	mathrand "math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestWorkersOpenSamePacketsAsLane receives trains (valid, forged, replayed, of unknown sessions), small
// packets and keepalives, and compares the result with that of a lane without workers.
func TestWorkersOpenSamePacketsAsLane(t *testing.T) {
	alone, r := newHastyRig(t, workpool.Config{}), newHastyRig(t, lanetest.ManyWorkers())
	random := mathrand.New(mathrand.NewPCG(3, 4))
	f := flow.Flow{Ends: lanetest.In4}
	for range 100 {
		n := 1 + random.IntN(2*lane.MaxJobs)
		for i := range n {
			kind, offset := random.IntN(9), random.IntN(1400)
			packets := lanetest.PacketsOf(t, f.Train(2+random.IntN(43), 1380))
			if kind == 0 {
				packets[len(packets)/2][40] ^= 1 // its checksum is wrong
			}
			for _, rig := range []*rig{alone, r} {
				run, size := rig.damaged(kind, offset, packets)
				rig.arriveFrom(i, lanetest.There, run, size)
			}
		}
		if random.IntN(3) == 0 && n > 2 { // a whole train once more, next to itself
			for _, rig := range []*rig{alone, r} {
				d := &rig.rx.in[n-2]
				rig.arriveFrom(n-1, lanetest.There, d.Buf[:d.N], d.SegSize)
			}
		}
		alone.rx.batch(n)
		r.rx.batch(n)
		if want, got := alone.Delivered(), r.Delivered(); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("the %d trains differ from the %d expected", len(got), len(want))
		}
	}
	for reason := drop.None + 1; reason < drop.Count; reason++ {
		if got, want := r.Drops(reason), alone.Drops(reason); got != want {
			t.Errorf("%v: got %d drops, want %d", reason, got, want)
		}
	}
	lanetest.Offered(t, r.Lane.OpenJobs.Stats())
}

// damaged returns packets as a run of the peer, damaged in a random way or valid.
func (r *rig) damaged(kind, offset int, packets [][]byte) (run []byte, size int) {
	run, size = r.Seal(packets...)
	switch kind {
	case 1: // small
		return r.Seal(packets[0])
	case 2: // forged
		run[len(run)/2+offset%100] ^= 1
	case 3: // a message repeated
		copy(run[size:], run[:size])
	case 4: // unknown receiver index
		run[size+4] ^= 1
	case 5: // a keepalive behind it
		run = append(run, r.Message(r.Remote, nil)...)
	}
	return run, size
}

// TestReceivedTrainsOfWipedSessionAreDropped wipes the keys before or while workers open the trains.
func TestReceivedTrainsOfWipedSessionAreDropped(t *testing.T) {
	r := newHastyRig(t, lanetest.ManyWorkers())
	f := flow.Flow{Ends: lanetest.In4}
	packets := 0
	for round := range 40 {
		r.Keys, r.Remote = r.NewSession(r.Peer, true)
		for i := range lane.MaxJobs {
			run, size := r.Seal(lanetest.PacketsOf(t, f.Train(20, 1380))...)
			r.arriveFrom(i, lanetest.There, run, size)
			packets += 20
		}
		keys := r.Keys
		var wiper sync.WaitGroup
		wiper.Go(func() {
			for range round {
				runtime.Gosched()
			}
			keys.Wipe()
		})
		r.rx.batch(lane.MaxJobs)
		wiper.Wait()
		r.Delivered()
	}
	delivered := int(r.Lane.Snapshot().RxPackets)
	if expired := int(r.Drops(drop.RXExpired)); delivered+expired != packets {
		t.Errorf("%d delivered and %d expired of %d", delivered, expired, packets)
	}
	lanetest.Offered(t, r.Lane.OpenJobs.Stats())
}

func TestOpeningWorkersAllocateNothing(t *testing.T) {
	r := newHastyRig(t, workpool.Config{Workers: 2})
	s := newSupply(t, r, 32*lane.MaxJobs)
	for i := range r.rx.ahead.jobs { // they are allocated on first use, which is late as long as no worker has a core
		r.rx.ahead.jobs[i].opened = make([]session.Message, maxOpenMessages)
	}
	for range 4 {
		s.arrive(lane.MaxJobs)
		r.rx.batch(lane.MaxJobs)
	}
	if n := lanetest.LeastAllocs(8, func() {
		s.arrive(lane.MaxJobs)
		r.rx.batch(lane.MaxJobs)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	lanetest.Offered(t, r.Lane.OpenJobs.Stats())
}

// TestLaneUsesWorkersForBacklogOfBulk: one bulk element, or a first burst, is handled sooner without them.
func TestLaneUsesWorkersForBacklogOfBulk(t *testing.T) {
	for name, c := range map[string]struct {
		workers, bulk, backlog int
		want                   bool
	}{
		"backlog":         {1, 3, Slots, true},
		"two wait":        {1, 2, Slots, true},
		"one waits":       {1, 1, Slots, false},
		"none waits":      {1, 0, Slots, false},
		"first burst":     {1, 3, 0, false},
		"without workers": {0, 3, Slots, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigWithWorkers(t, workpool.Config{Workers: c.workers})
			r.rx.lane.OpenJobs.ReportBacklog(c.backlog)
			r.rx.queue.bulk, r.rx.ahead.enabled = c.bulk, !c.want
			if r.rx.reportBacklog(); r.rx.ahead.enabled != c.want {
				t.Errorf("got workers in use %v, want %v", r.rx.ahead.enabled, c.want)
			}
		})
	}
}
