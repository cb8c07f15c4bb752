// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
)

// Elephant runs a benchmark of one flow, so of one lane, that always has more to send, without and with a worker. The ratio is the gain of
// the worker, given a core that is idle.
func Elephant(b *testing.B, benchmark func(b *testing.B, cfg workpool.Config)) {
	for _, workers := range []int{0, 1} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			before := runtime.GOMAXPROCS(runtime.NumCPU() + 2) // as `ropewalk run`, which counts busy-polling workers
			b.Cleanup(func() { runtime.GOMAXPROCS(before) })
			benchmark(b, workpool.Config{Workers: workers, BusyPoll: true})
		})
	}
}

// ReportWorkers reports how many jobs the workers have run.
func ReportWorkers(b *testing.B, s workpool.Stats) {
	if s.Submitted > 0 {
		b.ReportMetric(float64(s.Done)/float64(s.Submitted), "by-workers")
		b.ReportMetric(float64(s.BackOffs), "back-offs")
	}
}
