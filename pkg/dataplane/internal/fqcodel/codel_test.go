// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"math"
	"slices"
	"testing"
	"time"
)

// internet are the parameters that RFC 8289 recommends.
var internet = Params{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond, MTU: 1500}

// signalTimes pops an element of the given size every millisecond from now on, and returns the times since now of those that were
// signalled by a mark. sojourn is how long the element popped at that time has waited. remaining bytes are always behind it.
func signalTimes(p Params, remaining int, pops int, sojourn func(at time.Duration) time.Duration) []time.Duration {
	const start = int64(time.Hour)
	var at time.Duration
	var signals []time.Duration
	q := New(Config[int]{
		Params: p, Flows: 1, Quantum: 1500, Elements: pops + 1, Bytes: 1 << 30,
		Signal: func(*int) bool { signals = append(signals, at); return false },
	})
	q.Push(0, 0, 1000, start-int64(sojourn(0)))
	for i := range pops {
		at = time.Duration(i) * time.Millisecond
		next := at + time.Millisecond
		q.Push(0, 0, remaining, start+int64(next-sojourn(next)))
		q.Pop(start + int64(at))
	}
	return signals
}

func TestNoSignalBelowTarget(t *testing.T) {
	below := func(time.Duration) time.Duration { return internet.Target - 1 }
	if s := signalTimes(internet, 64<<10, 2000, below); s != nil {
		t.Errorf("signals at %v", s)
	}
	target := func(time.Duration) time.Duration { return internet.Target }
	if s := signalTimes(internet, 64<<10, 2000, target); s == nil {
		t.Error("no signal at the target")
	}
}

func TestNoSignalBeforeInterval(t *testing.T) {
	for _, sojourn := range []time.Duration{internet.Target, time.Second} {
		s := signalTimes(internet, 64<<10, 150, func(time.Duration) time.Duration { return sojourn })
		if want := []time.Duration{internet.Interval}; !slices.Equal(s, want) {
			t.Errorf("sojourn %v: signals at %v, want %v", sojourn, s, want)
		}
	}
}

func TestShortSojournRestartsInterval(t *testing.T) {
	dip := func(at time.Duration) time.Duration {
		if at == 99*time.Millisecond {
			return internet.Target - 1
		}
		return time.Second
	}
	s := signalTimes(internet, 64<<10, 250, dip)
	if want := []time.Duration{200 * time.Millisecond}; !slices.Equal(s, want) {
		t.Errorf("signals at %v, want %v", s, want)
	}
}

func TestNoSignalWithOneMTUBehind(t *testing.T) {
	long := func(time.Duration) time.Duration { return time.Second }
	if s := signalTimes(internet, internet.MTU, 2000, long); s != nil {
		t.Errorf("%d bytes behind: signals at %v", internet.MTU, s)
	}
	if s := signalTimes(internet, internet.MTU+1, 2000, long); s == nil {
		t.Errorf("%d bytes behind: no signal", internet.MTU+1)
	}
}

func TestSignalRateFollowsControlLaw(t *testing.T) {
	s := signalTimes(internet, 64<<10, 1000, func(time.Duration) time.Duration { return time.Second })
	// 100 ms after the interval, then 100 ms/sqrt(2), 100 ms/sqrt(3) and so on; in the next millisecond.
	want := []time.Duration{100, 200, 271, 329, 379, 424, 464, 502, 538, 571}
	for i := range want {
		want[i] *= time.Millisecond
	}
	if len(s) < len(want) || !slices.Equal(s[:len(want)], want) {
		t.Errorf("signals at %v, want %v", s, want)
	}
}

func TestLargeElementsExemptNoOtherFlow(t *testing.T) {
	signals := 0
	q := New(Config[int]{
		Params: internet, Flows: 2, Quantum: 1500, Elements: 64, Bytes: 1 << 30,
		Signal: func(*int) bool { signals++; return false },
	})
	q.Push(0, 0, 64<<10, 1)
	q.Pop(1)
	for i := range 3 {
		q.Push(1, i, 1500, 1)
	}
	for at := time.Second; at < 2*time.Second; at += 10 * time.Millisecond {
		q.Push(1, 0, 1500, int64(at-time.Second/2))
		q.Pop(int64(at))
	}
	if signals == 0 {
		t.Error("no signal to a flow of small elements behind a large one")
	}
}

func TestPopFattestRestartsInterval(t *testing.T) {
	signals := 0
	q := New(Config[int]{
		Params: internet, Flows: 1, Quantum: 1500, Elements: 8, Bytes: 1 << 30,
		Signal: func(*int) bool { signals++; return false },
	})
	fill := func() {
		for range 3 {
			q.Push(0, 0, 1500, 1)
		}
	}
	fill()
	q.Pop(int64(time.Second)) // above the target from here on
	for ok := true; ok; {
		_, ok = q.PopFattest()
	}
	fill()
	if q.Pop(int64(time.Minute)); signals != 0 {
		t.Error("signal at the first element of a queue that was empty")
	}
}

func TestSignalCountSaturates(t *testing.T) {
	p, c := internet, codel{count: math.MaxUint32 - 1}
	for range 3 {
		c.counted()
		if next := p.control(1e9, c.count); next <= 1e9 || next > 1e9+int64(p.Interval) {
			t.Fatalf("count %d: next signal at %d", c.count, next)
		}
	}
}
