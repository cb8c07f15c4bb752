// SPDX-License-Identifier: Apache-2.0

// Package cost adds metrics to benchmarks of the data path: nanoseconds per packet, and bytes per cycle where the machine has
// a cycle counter. Only tests import it.
package cost

import (
	"runtime"
	"testing"
	"time"
)

// Meter measures the loop of one benchmark. It belongs to the benchmark's goroutine.
//
//	m := cost.Of(b, 45, 45*1420)
//	for b.Loop() {
//		m.Outside(func() { copy(buf, train) }) // not measured
//		open(buf)
//	}
//	m.Report()
type Meter struct {
	b       *testing.B
	packets int
	bytes   int
	skipped time.Duration // spent in Outside

	// second returns the second counter, beside time. It is nil if there is none.
	second        func() int64
	begin         int64 // value of second at the start
	secondSkipped int64
	report        func(m *Meter, counted float64)
}

// Of begins to measure a loop whose iterations handle that many packets each, of bytes in all, in this goroutine alone.
// With no bytes, cycles are given per packet. The loop must follow at once.
func Of(b *testing.B, packets, bytes int) *Meter {
	b.Helper()
	m := &Meter{b: b, packets: packets, bytes: bytes}
	runtime.LockOSThread() // the counter is the thread's
	b.Cleanup(runtime.UnlockOSThread)
	c, err := openCycles()
	if err != nil {
		return m // what most virtual machines do not have
	}
	b.Cleanup(c.close)
	return m.alsoCount(c.read, (*Meter).reportCycles)
}

// OfCalls is Of for a loop of system calls. Their cost is in the kernel, whose cycles are not counted.
func OfCalls(b *testing.B, packets, bytes int) *Meter {
	b.Helper()
	return &Meter{b: b, packets: packets, bytes: bytes}
}

// OfProcess begins to measure a loop whose work is done by many goroutines. It also reports the CPU time of the
// process, because wall-clock time depends on the number of idle cores.
func OfProcess(b *testing.B, packets, bytes int) *Meter {
	b.Helper()
	m := &Meter{b: b, packets: packets, bytes: bytes}
	return m.alsoCount(processTime, (*Meter).reportProcessTime)
}

func (m *Meter) alsoCount(read func() int64, report func(*Meter, float64)) *Meter {
	m.second, m.report = read, report
	m.begin = read()
	return m
}

// Outside runs f, a part of the iteration that is not to be measured. It costs what it measures about 50 ns.
func (m *Meter) Outside(f func()) {
	start, counted := time.Now(), m.counted()
	f()
	m.secondSkipped += m.counted() - counted
	m.skipped += time.Since(start)
}

func (m *Meter) counted() int64 {
	if m.second == nil {
		return 0
	}
	return m.second()
}

// Report reports the measured figures, in place of the benchmark's own, and returns the
// nanoseconds per packet. Call it after the loop.
func (m *Meter) Report() (perPacket float64) {
	counted := max(m.counted()-m.begin-m.secondSkipped, 1)
	ns := float64(max(m.b.Elapsed()-m.skipped, 1))
	m.b.ReportMetric(ns/float64(m.b.N), "ns/op")
	m.b.ReportMetric(ns/m.allPackets(), "ns/packet")
	if m.bytes > 0 {
		m.b.ReportMetric(m.allBytes()/ns*1e3, "MB/s")
	}
	if m.report != nil {
		m.report(m, float64(counted))
	}
	return ns / m.allPackets()
}

func (m *Meter) reportCycles(cycles float64) {
	if m.bytes > 0 {
		m.b.ReportMetric(m.allBytes()/cycles, "B/cycle")
		return
	}
	m.b.ReportMetric(cycles/m.allPackets(), "cycles/packet")
}

func (m *Meter) reportProcessTime(ns float64) {
	m.b.ReportMetric(ns/m.allPackets(), "cpu-ns/packet")
}

func (m *Meter) allPackets() float64 { return float64(m.b.N) * float64(m.packets) }

func (m *Meter) allBytes() float64 { return float64(m.b.N) * float64(m.bytes) }
