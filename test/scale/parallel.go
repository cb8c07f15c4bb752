// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// window is how long threads work side by side before it is looked whether any was interrupted.
	window = 400 * time.Microsecond
	// undisturbed is the share of a window that a thread must have had its core for.
	undisturbed  = 0.97
	enoughSpans  = 60
	fewestSpans  = 10
	spanAttempts = 20_000
)

// errDisturbed says that the machine was too busy to let two threads run at the same time.
var errDisturbed = errors.New("threads were hardly ever left alone: measure again when the machine is idle")

// team is threads that work at the same time, over and over.
type team struct {
	size    int
	op      func(thread int)
	arrived atomic.Int64
	results []span
}

// span is what one thread did in a window.
type span struct {
	ops       int
	begin     time.Time
	wall, cpu int64
}

// sideBySide returns what one op takes, in ns, while so many threads do nothing else: the median over windows in which
// none of them was interrupted.
func sideBySide(threads int, op func(thread int)) (float64, error) {
	t := &team{size: threads, op: op, results: make([]span, threads)}
	var wg sync.WaitGroup
	good := make([]float64, 0, enoughSpans)
	for i := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for round := range int64(spanAttempts) {
				t.meet(2 * round)
				t.results[i] = t.work(i)
				t.meet(2*round + 1)
				// All have stored their results, and nobody goes on before all have seen them.
				if i == 0 {
					if ns, ok := t.judge(); ok {
						good = append(good, ns)
					}
				}
				t.meetAgain(round)
				if len(good) >= enoughSpans {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(good) < fewestSpans {
		return 0, errDisturbed
	}
	return median(good), nil
}

// meet waits until all threads have come to the nth meeting.
func (t *team) meet(n int64) {
	t.arrived.Add(1)
	for spins := 0; t.arrived.Load() < t.due(n); spins++ {
		if spins > 20_000 {
			runtime.Gosched()
		}
	}
}

// Three meetings make a round: the first two are numbered by meet's callers, the third by meetAgain's.
func (t *team) due(n int64) int64 { return (n/2*3 + n%2 + 1) * int64(t.size) }

func (t *team) meetAgain(round int64) {
	t.arrived.Add(1)
	for spins := 0; t.arrived.Load() < (round+1)*3*int64(t.size); spins++ {
		if spins > 20_000 {
			runtime.Gosched()
		}
	}
}

// work does ops for one window.
func (t *team) work(thread int) span {
	s, cpu := span{begin: time.Now()}, threadCPU()
	for time.Since(s.begin) < window {
		for range 8 {
			t.op(thread)
		}
		s.ops += 8
	}
	s.wall, s.cpu = int64(time.Since(s.begin)), threadCPU()-cpu
	return s
}

// judge returns the time per op of a window, and whether it counts.
func (t *team) judge() (ns float64, ok bool) {
	ok = true
	for _, s := range t.results {
		apart := s.begin.Sub(t.results[0].begin).Abs() // two threads on one core have their windows one after the other
		ok = ok && float64(s.cpu) >= undisturbed*float64(s.wall) && float64(apart) <= (1-undisturbed)*float64(window)
		ns += float64(s.cpu) / float64(s.ops) / float64(t.size)
	}
	return ns, ok
}

// contention is what an operation takes, in ns: alone, beside another thread that has everything of its own, and beside
// one that uses the same.
type contention struct {
	Alone    float64 `json:"alone_ns"`
	Separate float64 `json:"separate_ns"`
	Shared   float64 `json:"shared_ns"`
}

// contend measures an operation whose state is object 0 or 1.
func contend(op func(thread, object int)) (c contention, err error) {
	for _, m := range []struct {
		ns      *float64
		threads int
		object  func(thread int) int
	}{
		{&c.Alone, 1, func(int) int { return 0 }},
		{&c.Separate, 2, func(thread int) int { return thread }},
		{&c.Shared, 2, func(int) int { return 0 }},
	} {
		if *m.ns, err = sideBySide(m.threads, func(thread int) { op(thread, m.object(thread)) }); err != nil {
			return c, err
		}
		*m.ns = round2(*m.ns)
	}
	return c, nil
}
