// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// batches are the kinds of batches that a lane may process at once.
func batches(ends flow.Ends) map[string][][]byte {
	f := flow.Flow{Ends: ends}
	var small, mixed [][]byte
	for i := range 100 {
		small = append(small, f.Next(64))
		if i%10 == 0 {
			mixed = append(mixed, f.Train(2+i/10, 200))
		}
		mixed = append(mixed, f.Next(64+i))
	}
	return map[string][][]byte{
		"small packets": small[:100],
		"train":         {f.Train(45, 1380)},
		"mixed":         mixed,
		"tiny segments": {ends.TCPTrain(0, 1, make([]byte, 4000))},
	}
}

func TestTransmitAllocatesNothing(t *testing.T) { forEachObserved(t, transmitAllocatesNothing) }

// forEachObserved runs a test with and without counting of flows.
func forEachObserved(t *testing.T, test func(t *testing.T, observe func(*rig))) {
	t.Helper()
	t.Run("unobserved", func(t *testing.T) { test(t, func(*rig) {}) })
	t.Run("observed", func(t *testing.T) { test(t, func(r *rig) { _, _ = r.engine.Flows() }) })
}

func transmitAllocatesNothing(t *testing.T, observe func(*rig)) {
	t.Helper()
	for name, elements := range batches(out4) {
		r := newRig(t)
		observe(r)
		r.conn.silent = true
		r.transmit(elements...)
		if n := testing.AllocsPerRun(50, func() { r.transmit(elements...) }); n != 0 {
			t.Errorf("%s: got %v allocations per batch, want 0", name, n)
		}
		if r.allDrops() != 0 {
			t.Errorf("%s: got %d drops, want 0", name, r.allDrops())
		}
	}
}

func TestReceiveAllocatesNothing(t *testing.T) { forEachObserved(t, receiveAllocatesNothing) }

func receiveAllocatesNothing(t *testing.T, observe func(*rig)) {
	t.Helper()
	for name, elements := range batches(in4) {
		r := newRig(t)
		observe(r)
		packets := packetsOf(t, elements...)
		if name == "tiny segments" {
			packets = packets[:64]
		}
		b := newArrivals(r, packets, 60)
		buf := make([]byte, 1<<16)
		run := func() {
			b.next()
			for r.tun.TryReceive(0, buf) > 0 {
			}
		}
		run()
		run()
		if n := testing.AllocsPerRun(50, run); n != 0 {
			t.Errorf("%s: got %v allocations per batch, want 0", name, n)
		}
		if r.allDrops() != 0 {
			t.Errorf("%s: got %d drops, want 0", name, r.allDrops())
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
			run, size := r.seal(packets[i:end]...)
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
		n := min(len(runs), rxSlots)
		at := len(a.batches[a.at-1]) - len(runs)
		for i := range n {
			d := &a.rig.rx.in[i]
			d.N, d.SegSize, d.From, d.Truncated = copy(d.Buf, runs[i]), a.sizes[at+i], there, false
		}
		a.rig.rx.batch(n)
		runs = runs[n:]
	}
}
