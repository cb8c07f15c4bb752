// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// deliver offers one message and returns what comes out, in order.
func deliver(o *Order[uint32], number uint32, now int64) (out []uint32) {
	for {
		switch o.Arrive(number, now) {
		case Beyond:
			if item, ok := o.MakeRoom(number); ok {
				out = append(out, item)
			}
			continue
		case InOrder, Late:
			out = append(out, number)
		case Early:
			o.Keep(number, now, number)
		}
		return append(out, ready(o, now)...)
	}
}

// ready returns the messages that need not wait at a time.
func ready(o *Order[uint32], now int64) (out []uint32) {
	for {
		item, ok := o.Next(now)
		if !ok {
			return out
		}
		out = append(out, item)
	}
}

func TestOrderRestoresAnyPermutation(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		o := NewOrder[uint32](0, 0)
		var out []uint32
		for block := range uint32(20) {
			for _, i := range rng.Perm(200) {
				out = append(out, deliver(o, block*200+uint32(i), int64(block)*ms)...)
			}
		}
		if len(out) != 4000 || !slices.IsSorted(out) || o.Waiting() != 0 {
			t.Fatalf("seed %d: %d of 4000 messages came out, sorted %v, %d wait", seed, len(out), slices.IsSorted(out), o.Waiting())
		}
	}
}

func TestOrderWaitsAsLongAsPathsDiffer(t *testing.T) {
	o := NewOrder[uint32](0, 0)
	now := int64(1)
	for n := uint32(0); now < 3*int64(time.Second); n += 2 { // odd messages take 4 ms longer
		deliver(o, n+1, now)
		deliver(o, n, now+4*ms)
		now += 5 * ms
		o.Tick(now)
	}
	if got := o.Wait(); got != 6*ms {
		t.Errorf("waits %v, want 6 ms", time.Duration(got))
	}
}

// TestOrderMeasuresBehindLostMessages: those that fill other gaps show how the paths differ.
func TestOrderMeasuresBehindLostMessages(t *testing.T) {
	o := NewOrder[uint32](0, 0)
	now := int64(1)
	for n := uint32(1); now < int64(time.Second); n += 4 { // each fourth message is lost
		deliver(o, n+2, now)
		deliver(o, n+1, now+4*ms)
		now += 5 * ms
		deliver(o, n, now)
		o.Tick(now)
	}
	if got := o.Wait(); got < 6*ms || got > 8*ms {
		t.Errorf("waits %v, want the 5 ms by which messages were late, and half of that again", time.Duration(got))
	}
}

// TestOrderGivesUpLostMessagesAtDeadline loses two messages at once: the flow is delayed once.
func TestOrderGivesUpLostMessagesAtDeadline(t *testing.T) {
	o := NewOrder[uint32](0, 0)
	deliver(o, 2, ms)
	deliver(o, 5, ms)
	wait := o.Wait()
	if out := ready(o, ms+wait-1); out != nil || o.TakeSkipped() != 0 {
		t.Errorf("%v came out before the deadline", out)
	}
	if out := ready(o, ms+wait); !slices.Equal(out, []uint32{2, 5}) {
		t.Errorf("%v came out at the deadline", out)
	}
	if out := deliver(o, 3, ms+wait+1); !slices.Equal(out, []uint32{3}) {
		t.Errorf("the late message: %v", out)
	}
	if got := o.TakeSkipped(); got != 4 {
		t.Errorf("%d were given up, want 4", got)
	}
}

func TestOrderBoundsWhatWaits(t *testing.T) {
	o := NewOrder[uint32](0, 0)
	var out []uint32
	for n := uint32(1); n <= 3*orderSlots; n++ {
		out = append(out, deliver(o, n, 1)...)
		if o.Waiting() > orderSlots {
			t.Fatalf("%d messages wait", o.Waiting())
		}
	}
	out = append(out, deliver(o, 1<<31-1, 1)...) // from a malicious peer
	out = append(out, ready(o, 1+int64(MaxOrderWait))...)
	if !slices.IsSorted(out) || len(out) != 3*orderSlots+1 {
		t.Errorf("%d messages came out, sorted %v", len(out), slices.IsSorted(out))
	}
	if got, want := o.TakeSkipped(), uint64(1<<31-len(out)); got != want {
		t.Errorf("%d were given up, want %d", got, want)
	}
}

// TestOrderWaitsLongerAfterLateMessages: a path became slower than was measured.
func TestOrderWaitsLongerAfterLateMessages(t *testing.T) {
	o := NewOrder[uint32](0, 0)
	o.Tick(int64(time.Second))
	o.Tick(2 * int64(time.Second)) // nothing was missed for long
	now := 2 * int64(time.Second)
	deliver(o, 0, now)
	deliver(o, 2, now)
	ready(o, now+o.Wait())
	deliver(o, 1, now+10*ms)
	if got := o.Wait(); got != 15*ms {
		t.Errorf("waits %v after a message that came 10 ms late, want 15 ms", time.Duration(got))
	}
}

func TestOrderNumbersWrapAround(t *testing.T) {
	o := NewOrder[uint32](1<<32-2, 0)
	var out []uint32
	for _, n := range []uint32{1<<32 - 1, 1<<32 - 2, 1, 0} {
		out = append(out, deliver(o, n, 1)...)
	}
	if !slices.Equal(out, []uint32{1<<32 - 2, 1<<32 - 1, 0, 1}) {
		t.Errorf("got %v", out)
	}
}

func TestOrderAllocatesNothingPerMessage(t *testing.T) {
	o := NewOrder[uint32](0, 0)
	n := uint32(0)
	if allocs := testing.AllocsPerRun(100, func() {
		for _, i := range [...]uint32{1, 0, 3, 2} {
			if o.Arrive(n+i, 1) == Early {
				o.Keep(n+i, 1, n+i)
			}
			for _, ok := o.Next(1); ok; _, ok = o.Next(1) {
			}
		}
		n += 4
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
