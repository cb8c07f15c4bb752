// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
)

func TestReceiveAllocatesNothing(t *testing.T) { lanetest.ForEachObserved(t, receiveAllocatesNothing) }

func receiveAllocatesNothing(t *testing.T, observe func(*lanetest.Rig)) {
	t.Helper()
	for name, elements := range lanetest.Batches(lanetest.In4) {
		r := newRig(t)
		observe(r.Rig)
		packets := lanetest.PacketsOf(t, elements...)
		if name == "tiny segments" {
			packets = packets[:64]
		}
		b := newArrivals(r, packets, 60)
		buf := make([]byte, 1<<16)
		run := func() {
			b.next()
			for r.TUN.TryReceive(0, buf) > 0 {
			}
		}
		run()
		run()
		if n := testing.AllocsPerRun(50, run); n != 0 {
			t.Errorf("%s: got %v allocations per batch, want 0", name, n)
		}
		if r.AllDrops() != 0 {
			t.Errorf("%s: got %d drops, want 0", name, r.AllDrops())
		}
	}
}

// arrivals are batches with the same packets under new counters, since an opened message is a replay.
type arrivals struct {
	rig     *rig
	batches [][][]byte // of runs of one size
	sizes   []int
	at      int
}

// newArrivals seals packets n times over, equal ones that follow each other into runs of up to 45.
func newArrivals(r *rig, packets [][]byte, n int) *arrivals {
	a := &arrivals{rig: r}
	for range n {
		var runs [][]byte
		a.sizes = a.sizes[:0]
		for i := 0; i < len(packets); {
			end := i + 1
			for end < len(packets) && end-i < 45 && len(packets[end]) == len(packets[i]) {
				end++
			}
			run, size := r.Seal(packets[i:end]...)
			runs, a.sizes = append(runs, run), append(a.sizes, size)
			i = end
		}
		a.batches = append(a.batches, runs)
	}
	return a
}

// next lets the next batch arrive, in as many goes as the receiver takes it.
func (a *arrivals) next() {
	runs := a.batches[a.at]
	a.at++
	for len(runs) > 0 {
		n := min(len(runs), Slots)
		at := len(a.batches[a.at-1]) - len(runs)
		for i := range n {
			d := &a.rig.rx.in[i]
			d.N, d.SegSize, d.From, d.Truncated = copy(d.Buf, runs[i]), a.sizes[at+i], lanetest.There, false
		}
		a.rig.rx.batch(n)
		runs = runs[n:]
	}
}
