// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"math/rand/v2"
	"sync"
	"testing"
)

func newAllowances(total, reserve, chunk int64, lanes int) (*Budget, []Allowance) {
	b := new(Budget)
	b.Init(total, reserve, chunk, lanes)
	all := make([]Allowance, lanes)
	for i := range all {
		all[i].Budget = b
	}
	return b, all
}

// grow raises what a lane uses to the most that it may, and returns that.
func (a *Allowance) grow() int {
	used := 0
	for !a.Exceeded(used) {
		used++
	}
	return used
}

func TestBudgetLeavesSomeToOtherLanes(t *testing.T) {
	for _, lanes := range []int{1, 2, 3, 17, 65} {
		b, all := newAllowances(64<<10, 4<<10, 64, lanes)
		held := 0
		for i := range all {
			n := all[i].grow()
			if n < int(b.Reserve) {
				t.Errorf("lane %d of %d may use %d, less than its reserve of %d", i, lanes, n, b.Reserve)
			}
			if i == 0 && n < 3*(64<<10)/8 {
				t.Errorf("the only busy one of %d lanes may use %d", lanes, n)
			}
			if i == 1 && all[1].taken == 0 {
				t.Errorf("the second busy lane of %d gets nothing but its reserve", lanes)
			}
			held += n
		}
		if held > 64<<10 {
			t.Errorf("%d lanes use %d, more than there is", lanes, held)
		}
	}
}

// TestBudgetHoldsForLargeElements fills lanes with elements of up to three chunks: a lane may exceed its limit by part of one, and gets no
// less than with small ones.
func TestBudgetHoldsForLargeElements(t *testing.T) {
	const total, reserve, chunk, lanes = 64 << 10, 4 << 10, 512, 5
	for _, size := range []int{1, 64, chunk - 1, chunk, 3 * chunk} {
		_, small := newAllowances(total, reserve, chunk, lanes)
		_, large := newAllowances(total, reserve, chunk, lanes)
		for i := range lanes {
			used := 0
			for !large[i].Exceeded(used) {
				used += size
			}
			limit := large[i].Limit()
			if used >= limit+size {
				t.Errorf("lane %d uses %d in elements of %d, its limit is %d", i, used, size, limit)
			}
			if most := small[i].grow(); limit != most {
				t.Errorf("lane %d may use %d with elements of %d, want %d", i, limit, size, most)
			}
		}
	}
}

func TestBudgetReturnsWhatIsNotUsed(t *testing.T) {
	b, all := newAllowances(64<<10, 4<<10, 64, 3)
	before := b.Left.Load()
	all[0].grow()
	all[0].Shrink(0)
	if all[0].taken > b.chunk {
		t.Errorf("an empty queue keeps %d, more than a chunk", all[0].taken)
	}
	all[0].grow()
	all[0].Close()
	if left := b.Left.Load(); left != before {
		t.Errorf("%d is left after all lanes closed, want %d", left, before)
	}
}

// TestBudgetIsNeverOverdrawn has lanes that take and return at the same time.
func TestBudgetIsNeverOverdrawn(t *testing.T) {
	const total = 1000
	b, all := newAllowances(total, 20, 7, 8)
	before := b.Left.Load()
	var lanes sync.WaitGroup
	for i := range all {
		a, r := &all[i], rand.New(rand.NewPCG(1, uint64(i)))
		lanes.Go(func() {
			for range 20_000 {
				if used := r.IntN(total); a.Exceeded(used) {
					a.Shrink(r.IntN(total))
				}
				if left := b.Left.Load(); left < 0 || left > before {
					t.Errorf("%d of %d is left", left, before)
					return
				}
			}
			a.Close()
		})
	}
	lanes.Wait()
	if left := b.Left.Load(); left != before {
		t.Errorf("%d is left after all lanes closed, want %d", left, before)
	}
}
