// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// slowWindow is Window's reference model: it stores every counter.
type slowWindow struct {
	seen   map[uint64]bool
	newest uint64
}

func newSlowWindow() *slowWindow { return &slowWindow{seen: map[uint64]bool{}} }

func (w *slowWindow) accept(counter uint64) bool {
	w.newest = max(w.newest, counter)
	if w.newest/blockBits-counter/blockBits >= ringBlocks || w.seen[counter] {
		return false
	}
	w.seen[counter] = true
	return true
}

func (w *slowWindow) acceptRun(counters []uint64) []bool {
	w.newest = max(w.newest, slices.Max(counters))
	fresh := make([]bool, len(counters))
	for i, c := range counters {
		fresh[i] = w.accept(c)
	}
	return fresh
}

func TestWindowAcceptsEachCounterOnce(t *testing.T) {
	const far = 1<<40 + 1<<20
	steps := []struct {
		name    string
		counter uint64
		want    bool
	}{
		{"the first counter of all", 0, true},
		{"the first counter again", 0, false},
		{"the next", 1, true},
		{"a gap ahead", 700, true},
		{"late, inside the window", 699, true},
		{"late and again", 699, false},
		{"far ahead", far, true},
		{"as far behind as the window reaches", far - WindowSize, true},
		{"that one again", far - WindowSize, false},
		{"beyond the window's last block", far - WindowSize - 32, false},
		{"behind the window though never seen", 2, false},
		{"the largest counter a session uses", RejectAfterMessages - 1, true},
		{"the largest counter again", RejectAfterMessages - 1, false},
		{"just below it", RejectAfterMessages - 2, true},
	}
	var w Window
	for _, s := range steps {
		if got := w.Accept(s.counter); got != s.want {
			t.Errorf("%s: Accept(%d) = %v, want %v", s.name, s.counter, got, s.want)
		}
	}
}

func TestWindowReachesAtLeast8192CountersBack(t *testing.T) {
	if WindowSize < 8192 {
		t.Fatalf("got a window of %d counters, want at least Linux's 8192", WindowSize)
	}
	for _, newest := range []uint64{WindowSize, 20000, 1<<37 + 5, 1<<60 + 31} {
		var w Window
		w.Accept(newest)
		for c := newest - WindowSize; c < newest; c++ {
			if !w.Accept(c) {
				t.Fatalf("newest %d: Accept(%d) = false, want true", newest, c)
			}
		}
	}
}

func TestWindowRejectsAliasedBlockNumber(t *testing.T) {
	var w Window
	w.Accept(100)
	w.Accept(100 + 1<<37)
	if w.Accept(100) {
		t.Error("Accept of a used counter 2^37 behind the newest = true, want false")
	}
	if !w.Accept(101 + 1<<37) {
		t.Error("Accept of the counter after the newest = false, want true")
	}
}

// walk returns a counter sequence that goes forward, backward and in circles, and leaps now and then.
func walk(r *rand.Rand, from uint64) uint64 {
	switch r.IntN(100) {
	case 0:
		return from + r.Uint64N(1<<38)
	case 1, 2, 3:
		return from + r.Uint64N(2*WindowSize)
	case 4, 5, 6, 7, 8, 9:
		return from - min(from, r.Uint64N(2*WindowSize))
	default:
		return from + 1 - min(from, r.Uint64N(3))
	}
}

func TestWindowMatchesUnboundedOracle(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var w Window
		slow := newSlowWindow()
		counter := r.Uint64N(1 << 20)
		for range 20000 {
			counter = walk(r, counter)
			if got, want := w.Accept(counter), slow.accept(counter); got != want {
				t.Fatalf("seed %d: Accept(%d) = %v, want %v (newest %d)", seed, counter, got, want, slow.newest)
			}
		}
	}
}

func TestAcceptRunMatchesOracle(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		var w Window
		slow := newSlowWindow()
		counter := uint64(0)
		for range 1000 {
			counters := make([]uint64, 1+r.IntN(70))
			for i := range counters {
				counter = walk(r, counter)
				counters[i] = counter
			}
			fresh := make([]bool, len(counters))
			w.AcceptRun(counters, fresh)
			if want := slow.acceptRun(counters); !slices.Equal(fresh, want) {
				t.Fatalf("seed %d: AcceptRun(%v)\n = %v,\nwant %v", seed, counters, fresh, want)
			}
		}
	}
}

func TestAcceptRunIgnoresExcessEntries(t *testing.T) {
	var w Window
	fresh := []bool{false, false}
	w.AcceptRun([]uint64{1, 2, 3}, fresh)
	w.AcceptRun(nil, nil)
	if !fresh[0] || !fresh[1] || !w.Accept(3) {
		t.Error("AcceptRun with a short result marked other counters than the first two")
	}
}

// Lanes race for the same counters, singly and in trains, while the window moves on under them.
func TestWindowConcurrentAcceptIsUnique(t *testing.T) {
	const lanes, total = 4, 2_000_000
	var w Window
	accepted := make([]atomic.Uint32, total)
	var wg sync.WaitGroup
	for lane := range uint64(lanes) {
		wg.Go(func() { raceThrough(&w, accepted, lane) })
	}
	wg.Wait()
	sum := uint32(0)
	for c := range accepted {
		n := accepted[c].Load()
		if n > 1 {
			t.Fatalf("counter %d was accepted %d times, want at most once", c, n)
		}
		sum += n
	}
	if sum == 0 {
		t.Error("got no counters accepted")
	}
}

// raceThrough offers the counters in ascending trains with echoes of those just behind. It goes on where the fastest lane is, so that lanes contend
// whenever they run at the same time.
func raceThrough(w *Window, accepted []atomic.Uint32, lane uint64) {
	r := rand.New(rand.NewPCG(lane, 3))
	counters := make([]uint64, 0, 64)
	fresh := make([]bool, 64)
	for base := 0; base < len(accepted); base = max(base+40, int(w.newest.Load()<<blockShift)) {
		counters = counters[:0]
		for i := base; i < min(base+40, len(accepted)); i++ {
			counters = append(counters, uint64(i))
		}
		counters = append(counters, uint64(max(0, base-r.IntN(300))))
		w.AcceptRun(counters, fresh)
		for i, c := range counters {
			if fresh[i] {
				accepted[c].Add(1)
			}
		}
		if old := uint64(max(0, base-r.IntN(WindowSize))); w.Accept(old) {
			accepted[old].Add(1)
		}
	}
}

// Lanes meet before each block and then contend for its slot.
func TestWindowSlotContentionAcceptsEachCounterOnce(t *testing.T) {
	const lanes, rounds = 2, 20_000
	var w Window
	var arrived, accepted atomic.Int64
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for round := range int64(rounds) {
				for arrived.Add(1); arrived.Load() < lanes*(round+1); {
					runtime.Gosched()
				}
				for c := range uint64(blockBits) {
					if w.Accept(uint64(round)*blockBits + c) {
						accepted.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := accepted.Load(); n != rounds*blockBits {
		t.Errorf("got %d counters accepted, want %d", n, rounds*blockBits)
	}
}

func TestWindowAllocatesNothing(t *testing.T) {
	w := new(Window)
	counters, fresh := make([]uint64, 45), make([]bool, 45)
	next := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		for i := range counters {
			counters[i] = next
			next++
		}
		w.AcceptRun(counters, fresh)
		w.Accept(next)
	}); n != 0 {
		t.Errorf("got %v allocations per train, want 0", n)
	}
}

func FuzzWindow(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1<<37), WindowSize))
	f.Fuzz(func(t *testing.T, data []byte) {
		var counters []uint64
		for ; len(data) >= 8; data = data[8:] {
			counters = append(counters, binary.LittleEndian.Uint64(data))
		}
		if len(counters) == 0 {
			return
		}
		var single, train Window
		slow, slowTrain := newSlowWindow(), newSlowWindow()
		for _, c := range counters {
			if single.Accept(c) && !slow.accept(c) {
				t.Fatalf("Accept(%d) = true, want false: used or too old, in %v", c, counters)
			}
		}
		fresh := make([]bool, len(counters))
		train.AcceptRun(counters, fresh)
		for i, want := range slowTrain.acceptRun(counters) {
			if fresh[i] && !want {
				t.Fatalf("AcceptRun accepted %d, want it rejected: used or too old, in %v", counters[i], counters)
			}
		}
	})
}
