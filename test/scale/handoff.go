// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// handOff is what it takes to have a train sealed on another core, in ns.
type handOff struct {
	// Over is what sealing takes longer there than here, as the train comes from another core's cache; Back is what the
	// copy takes longer that sendmsg makes of it, here again.
	Over float64 `json:"over_ns"`
	Back float64 `json:"back_ns"`
	// Wake is waking a thread that sleeps, and going to sleep again.
	Wake float64 `json:"wake_ns"`
}

func measureHandOff() (handOff, error) {
	l, err := newLap(trainSegments, trainPayload)
	if err != nil {
		return handOff{}, err
	}
	l.sealed = l.sealed[:1] // it is in the cache of who has written it
	here, there := sealHere(l), sealThere(l)
	return handOff{
		Over: round2(max(there[0]-here[0], 0)), Back: round2(max(there[1]-here[1], 0)), Wake: round2(wake()),
	}, nil
}

const handOffs = 3000

// sealHere splits a train, and takes the times of sealing and copying it.
func sealHere(l *lap) [2]float64 {
	out := make([]byte, len(l.sealed[0]))
	var times [2][]float64
	for range handOffs {
		l.split(0)
		begin := time.Now()
		l.seal(0)
		sealed := time.Now()
		copy(out, l.sealed[0])
		times[0], times[1] = append(times[0], float64(sealed.Sub(begin))), append(times[1], float64(time.Since(sealed)))
	}
	return [2]float64{median(times[0]), median(times[1])}
}

// sealThere is sealHere with the sealing on another core. Both wait awake.
func sealThere(l *lap) [2]float64 {
	var turn atomic.Int32
	var times [2][]float64
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range handOffs {
			await(&turn, 1)
			begin := time.Now()
			l.seal(0)
			times[0] = append(times[0], float64(time.Since(begin)))
			turn.Store(0)
		}
	})
	out := make([]byte, len(l.sealed[0]))
	for range handOffs {
		l.split(0)
		turn.Store(1)
		await(&turn, 0)
		begin := time.Now()
		copy(out, l.sealed[0])
		times[1] = append(times[1], float64(time.Since(begin)))
	}
	wg.Wait()
	return [2]float64{median(times[0]), median(times[1])}
}

func await(turn *atomic.Int32, want int32) {
	for spins := 0; turn.Load() != want; spins++ {
		if spins > 50_000 {
			runtime.Gosched()
		}
	}
}

// wake is the CPU time that it takes to wake a thread that sleeps, and to go to sleep, in ns.
func wake() float64 {
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
