// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"fmt"
	"testing"
)

func benchJobs(count, n int) []polyJob {
	jobs := make([]polyJob, count)
	for i := range jobs {
		jobs[i] = polyFills[0].job(n)
	}
	return jobs
}

// BenchmarkPolyTags is what sets of messages cost, in lanes as planned and one by one.
func BenchmarkPolyTags(b *testing.B) {
	methods := map[string]func([]polyJob){"alone": polyTagsAlone}
	for _, k := range polyKernels {
		if k.supported() {
			methods[k.name] = planned(k.kernel)
		}
	}
	for _, n := range []int{64, 256, 576, 1440, 8920} {
		for _, count := range []int{1, 2, 4, 8, 45} {
			jobs := benchJobs(count, n)
			for name, do := range methods {
				b.Run(fmt.Sprintf("%dx%d/%s", count, n, name), func(b *testing.B) {
					b.SetBytes(int64(n * count))
					for b.Loop() {
						do(jobs)
					}
				})
			}
		}
	}
}

func polyTagsAlone(jobs []polyJob) {
	for i := range jobs {
		polyTagGeneric(&jobs[i])
	}
}

// BenchmarkPolyShapes is what one call costs by how many lanes share a message: call and row of a polyKernel come from it.
func BenchmarkPolyShapes(b *testing.B) {
	for _, k := range polyKernels {
		if !k.supported() {
			continue
		}
		for log := range k.kernel.call {
			for _, n := range []int{0, 64, 1440, 8920} {
				jobs, do := benchJobs(k.kernel.lanes>>log, n), inLanes(k.kernel, log)
				rows := polyRows(polyBlocks(&jobs[0]), log)
				b.Run(fmt.Sprintf("%s/lanes=%d/len=%d/rows=%d", k.name, 1<<log, n, rows), func(b *testing.B) {
					b.SetBytes(int64(n * len(jobs)))
					for b.Loop() {
						do(jobs)
					}
				})
			}
		}
	}
}
