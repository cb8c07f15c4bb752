// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkTX measures packets from the host to the network.
func BenchmarkTX(b *testing.B) { benchmark(b, newTX) }

// BenchmarkRX measures packets from the network to the host.
func BenchmarkRX(b *testing.B) { benchmark(b, newRX) }

// BenchmarkBoth measures packets from one host to another, through two devices.
func BenchmarkBoth(b *testing.B) { benchmark(b, newBoth) }

func benchmark(b *testing.B, newPath func(testing.TB, implementation, shape) *path) {
	for _, s := range shapes {
		for _, cores := range slices.Compact([]int{1, runtime.NumCPU()}) {
			for _, i := range implementations {
				if i.differs(s) {
					name := fmt.Sprintf("size=%d/cores=%d/impl=%s", s.size, cores, i.name)
					b.Run(name, func(b *testing.B) { benchmarkPath(b, cores, s, func() *path { return newPath(b, i, s) }) })
				}
			}
		}
	}
}

// benchmarkPath runs with that many cores. It does not use the flag -cpu, which takes effect only after the loop (Go 1.26).
func benchmarkPath(b *testing.B, cores int, s shape, newPath func() *path) {
	before := runtime.GOMAXPROCS(cores)
	b.Cleanup(func() { runtime.GOMAXPROCS(before) })
	p := newPath()
	m := cost.OfProcess(b, s.packets(), s.packets()*s.size)
	for b.Loop() {
		m.Outside(p.prepare)
		p.runRound(b)
	}
	ns := m.Report()
	b.ReportMetric(float64(8*s.size)/ns, "Gbit/s")
}
