// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkTX takes what a host sends to the network.
func BenchmarkTX(b *testing.B) { benchmark(b, newTX) }

// BenchmarkRX takes what the network brings to the host.
func BenchmarkRX(b *testing.B) { benchmark(b, newRX) }

// BenchmarkBoth takes what one host sends to another.
func BenchmarkBoth(b *testing.B) { benchmark(b, newBoth) }

func benchmark(b *testing.B, newPath func(testing.TB, implementation, shape) *path) {
	for _, s := range shapes {
		for _, cores := range slices.Compact([]int{1, runtime.NumCPU()}) {
			for _, i := range implementations {
				if i.suits(s) {
					name := fmt.Sprintf("size=%d/cores=%d/impl=%s", s.size, cores, i.name)
					b.Run(name, func(b *testing.B) { benchmarkPath(b, cores, s, func() *path { return newPath(b, i, s) }) })
				}
			}
		}
	}
}

// benchmarkPath measures on that many cores. The flag -cpu would not do: it takes effect after the loop (Go 1.26).
func benchmarkPath(b *testing.B, cores int, s shape, newPath func() *path) {
	before := runtime.GOMAXPROCS(cores)
	b.Cleanup(func() { runtime.GOMAXPROCS(before) })
	p := newPath()
	m := cost.OfProcess(b, s.packets(), s.packets()*s.size)
	for b.Loop() {
		m.Outside(p.prepare)
		p.lap(b)
	}
	ns := m.Report()
	b.ReportMetric(float64(8*s.size)/ns, "Gbit/s")
}
