// SPDX-License-Identifier: Apache-2.0

package session

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// ringCounters are all those of the blocks around which a window changes to its next array, and of its last block. They fit one window.
func ringCounters() (counters []uint64) {
	for _, block := range []uint64{tinyBlocks, 0, tinyBlocks - 1, smallBlocks, smallBlocks - 1, ringBlocks - 2} {
		for i := range uint64(blockBits) {
			counters = append(counters, block*blockBits+i)
		}
	}
	return counters
}

// Lanes meet at a window that has no ring yet, with the same counters in different orders, singly and in trains.
func TestWindowRingAllocationRaceAcceptsEachCounterOnce(t *testing.T) {
	const lanes, rounds = 2, 3000
	counters := ringCounters()
	for round := range uint64(rounds) {
		var w Window
		var arrived atomic.Int32
		var accepted [lanes][]uint64
		var wg sync.WaitGroup
		for lane := range lanes {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(round, uint64(lane)))
				mine, fresh := slices.Clone(counters), make([]bool, len(counters))
				if round%2 == 0 {
					r.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				}
				arrived.Add(1)
				for i := 1; arrived.Load() < lanes; i++ {
					if i%256 == 0 {
						runtime.Gosched()
					}
				}
				acceptAll(&w, mine, fresh, lane%2 == 0)
				for i, c := range mine {
					if fresh[i] {
						accepted[lane] = append(accepted[lane], c)
					}
				}
			})
		}
		wg.Wait()
		if all := slices.Concat(accepted[:]...); !sameCounters(all, counters) {
			t.Fatalf("round %d: got accepted %v,\nwant each once of %v", round, all, counters)
		}
	}
}

func sameCounters(a, b []uint64) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}
