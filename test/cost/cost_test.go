// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"flag"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchmark runs a benchmark for a few iterations instead of a second.
func benchmark(t *testing.T, f func(b *testing.B)) testing.BenchmarkResult {
	t.Helper()
	duration := flag.Lookup("test.benchtime")
	before := duration.Value.String()
	if err := flag.Set(duration.Name, "20x"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = flag.Set(duration.Name, before) }()
	return testing.Benchmark(f)
}

// busy spins for at least d.
func busy(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		continue
	}
}

func TestReportCoversOnlyMeasuredSections(t *testing.T) {
	const inside, outside = 100 * time.Microsecond, 5 * time.Millisecond
	r := benchmark(t, func(b *testing.B) {
		m := OfProcess(b, 10, 1000)
		for b.Loop() {
			busy(inside)
			m.Outside(func() { busy(outside) })
		}
		m.Report()
	})
	perPacket, bytes := r.Extra["ns/packet"], r.Extra["MB/s"]
	if perPacket < float64(inside)/10 {
		t.Errorf("%v ns per packet, of at least %v", perPacket, inside/10)
	}
	if got := perPacket * 10; r.Extra["ns/op"]-got > 1 || got-r.Extra["ns/op"] > 1 {
		t.Errorf("%v ns per 10 packets, and %v per iteration", got, r.Extra["ns/op"])
	}
	if want := 1000 / (perPacket * 10) * 1e3; bytes < want*.999 || bytes > want*1.001 {
		t.Errorf("got %v MB/s, want %v", bytes, want)
	}
	if whole := float64(r.T.Nanoseconds()) / float64(r.N); r.Extra["ns/op"] > whole-float64(outside) {
		t.Errorf("%v ns per iteration, of %v with %v outside", r.Extra["ns/op"], whole, outside)
	}
	if cpu := r.Extra["cpu-ns/packet"]; cpu <= 0 {
		t.Errorf("%v ns of CPU time per packet", cpu)
	}
}

// TestCycleCounterAdvances does with a counter of the kernel's own, which every machine has, what is done with cycles.
func TestCycleCounterAdvances(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := openCounter(unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK)
	if err != nil {
		t.Skipf("needs perf_event_open (kernel.perf_event_paranoid of 2 or less, or root): %v", err)
	}
	defer c.close()
	before := c.read()
	for spins := 0; c.read() <= before; spins++ {
		if busy(time.Millisecond); spins > 1000 {
			t.Fatalf("a thread that is busy counts %d", before)
		}
	}
}

func TestCyclesAreReportedOnlyWhereTheyAreCounted(t *testing.T) {
	_, err := openCycles()
	for _, bytes := range []int{0, 100} {
		unit := map[int]string{0: "cycles/packet", 100: "B/cycle"}[bytes]
		r := benchmark(t, func(b *testing.B) {
			m := Of(b, 1, bytes)
			for b.Loop() {
				busy(time.Microsecond)
			}
			m.Report()
		})
		if got, ok := r.Extra[unit]; ok != (err == nil) || ok && got <= 0 {
			t.Errorf("got %v %s, want a positive value only if the counter can be opened: %v", got, unit, err)
		}
	}
}

func TestSystemCallsHaveNoCycles(t *testing.T) {
	r := benchmark(t, func(b *testing.B) {
		m := OfCalls(b, 2, 100)
		for b.Loop() {
			busy(time.Microsecond)
		}
		m.Report()
	})
	if got := r.Extra["ns/packet"]; got < 500 || len(r.Extra) != 3 {
		t.Errorf("%v reported, want ns/op, ns/packet and MB/s", r.Extra)
	}
}
