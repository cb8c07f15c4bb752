// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// handOffCosts is the extra cost of sealing a train on another core, in ns.
type handOffCosts struct {
	// Over is the extra time of sealing, since the train comes from another core's cache. Back is the extra time of the copy in
	// sendmsg afterwards, on the first core.
	Over float64 `json:"over_ns"`
	Back float64 `json:"back_ns"`
	// Wake is the CPU time of waking a sleeping thread, and of sleeping again.
	Wake float64 `json:"wake_ns"`
}

func measureHandOff() (handOffCosts, error) {
	l, err := newTrainBench(trainSegments, trainPayload)
	if err != nil {
		return handOffCosts{}, err
	}
	l.sealed = l.sealed[:1] // so that it is in the cache of the core that has written it
	here, there := sealHere(l), sealThere(l)
	return handOffCosts{
		Over: round2(max(there[0]-here[0], 0)), Back: round2(max(there[1]-here[1], 0)), Wake: round2(wakeCost()),
	}, nil
}

const handOffRounds = 3000

// sealHere splits trains, and measures sealing and copying them on one core.
func sealHere(l *trainBench) [2]float64 {
	out := make([]byte, len(l.sealed[0]))
	var times [2][]float64
	for range handOffRounds {
		l.split(0)
		begin := time.Now()
		l.seal(0)
		sealed := time.Now()
		copy(out, l.sealed[0])
		times[0], times[1] = append(times[0], float64(sealed.Sub(begin))), append(times[1], float64(time.Since(sealed)))
	}
	return [2]float64{median(times[0]), median(times[1])}
}

// sealThere does the same with the sealing on another core. Both threads wait by polling.
func sealThere(l *trainBench) [2]float64 {
	var turn atomic.Int32
	var times [2][]float64
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range handOffRounds {
			waitForTurn(&turn, 1)
			begin := time.Now()
			l.seal(0)
			times[0] = append(times[0], float64(time.Since(begin)))
			turn.Store(0)
		}
	})
	out := make([]byte, len(l.sealed[0]))
	for range handOffRounds {
		l.split(0)
		turn.Store(1)
		waitForTurn(&turn, 0)
		begin := time.Now()
		copy(out, l.sealed[0])
		times[1] = append(times[1], float64(time.Since(begin)))
	}
	wg.Wait()
	return [2]float64{median(times[0]), median(times[1])}
}

func waitForTurn(turn *atomic.Int32, want int32) {
	for spins := 0; turn.Load() != want; spins++ {
		if spins > 50_000 {
			runtime.Gosched()
		}
	}
}

// wakeCost returns the CPU time of waking a sleeping thread, and of going to sleep, in ns.
func wakeCost() float64 {
	const hops = 5000
	ping, pong := make(chan struct{}), make(chan struct{})
	var used [2]int64
	var wg sync.WaitGroup
	for side := range 2 {
		in, out := ping, pong
		if side == 1 {
			in, out = pong, ping
		}
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			begin := threadCPU()
			for range hops {
				if side == 0 {
					out <- struct{}{}
					<-in
				} else {
					<-in
					out <- struct{}{}
				}
			}
			used[side] = threadCPU() - begin
		})
	}
	wg.Wait()
	return float64(used[0]+used[1]) / (2 * hops)
}
