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
	// window is the time that threads run in parallel before the code checks whether one was interrupted.
	window = 400 * time.Microsecond
	// minCPUShare is the smallest share of a window for which each thread must have had a core.
	minCPUShare   = 0.97
	targetWindows = 60
	minWindows    = 10
	maxWindows    = 20_000
)

// errDisturbed means that the machine was too busy to run two threads at the same time.
var errDisturbed = errors.New("threads were interrupted too often: measure again when the machine is idle")

// threadGroup runs threads at the same time, in windows.
type threadGroup struct {
	size    int
	op      func(thread int)
	arrived atomic.Int64
	results []windowResult
}

// windowResult is the work of one thread in one window.
type windowResult struct {
	ops       int
	begin     time.Time
	wall, cpu int64
}

// measureParallel returns the CPU time of one op, in ns, while that many threads run it. It is the
// median over the windows in which no thread was interrupted.
func measureParallel(threads int, op func(thread int)) (float64, error) {
	t := &threadGroup{size: threads, op: op, results: make([]windowResult, threads)}
	var wg sync.WaitGroup
	good := make([]float64, 0, targetWindows)
	for i := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for round := range int64(maxWindows) {
				t.barrier(2 * round)
				t.results[i] = t.work(i)
				t.barrier(2*round + 1)
				// All threads have stored their results, and none continues before endRound.
				if i == 0 {
					if ns, ok := t.evaluate(); ok {
						good = append(good, ns)
					}
				}
				t.endRound(round)
				if len(good) >= targetWindows {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(good) < minWindows {
		return 0, errDisturbed
	}
	return median(good), nil
}

// barrier waits until all threads have reached barrier n.
func (t *threadGroup) barrier(n int64) {
	t.arrived.Add(1)
	for spins := 0; t.arrived.Load() < t.arrivalsAt(n); spins++ {
		if spins > 20_000 {
			runtime.Gosched()
		}
	}
}

// arrivalsAt returns the number of arrivals at which barrier n opens. Each round has three barriers: two of barrier and one of
// endRound.
func (t *threadGroup) arrivalsAt(n int64) int64 { return (n/2*3 + n%2 + 1) * int64(t.size) }

func (t *threadGroup) endRound(round int64) {
	t.arrived.Add(1)
	for spins := 0; t.arrived.Load() < (round+1)*3*int64(t.size); spins++ {
		if spins > 20_000 {
			runtime.Gosched()
		}
	}
}

// work runs ops for one window.
func (t *threadGroup) work(thread int) windowResult {
	s, cpu := windowResult{begin: time.Now()}, threadCPU()
	for time.Since(s.begin) < window {
		for range 8 {
			t.op(thread)
		}
		s.ops += 8
	}
	s.wall, s.cpu = int64(time.Since(s.begin)), threadCPU()-cpu
	return s
}

// evaluate returns the time per op in a window, and whether all threads ran undisturbed.
func (t *threadGroup) evaluate() (ns float64, ok bool) {
	ok = true
	for _, s := range t.results {
		offset := s.begin.Sub(t.results[0].begin).Abs() // on one core, the threads' windows follow each other
		ok = ok && float64(s.cpu) >= minCPUShare*float64(s.wall) && float64(offset) <= (1-minCPUShare)*float64(window)
		ns += float64(s.cpu) / float64(s.ops) / float64(t.size)
	}
	return ns, ok
}

// contention is the CPU time of an operation, in ns. It has the time of a single thread, of two
// threads with separate objects, and of two threads that share one.
type contention struct {
	Alone    float64 `json:"alone_ns"`
	Separate float64 `json:"separate_ns"`
	Shared   float64 `json:"shared_ns"`
}

// contend measures an operation on the objects 0 and 1.
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
		if *m.ns, err = measureParallel(m.threads, func(thread int) { op(thread, m.object(thread)) }); err != nil {
			return c, err
		}
		*m.ns = round2(*m.ns)
	}
	return c, nil
}
