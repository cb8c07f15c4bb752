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
	polyNeeds512(b)
	for _, n := range []int{64, 256, 576, 1440, 8920} {
		for _, count := range []int{1, 2, 4, 8, 45} {
			jobs := benchJobs(count, n)
			for _, method := range []struct {
				name string
				do   func([]polyJob)
			}{{"lanes", tags512}, {"alone", polyTagsAlone}} {
				b.Run(fmt.Sprintf("%dx%d/%s", count, n, method.name), func(b *testing.B) {
					b.SetBytes(int64(n * count))
					for b.Loop() {
						method.do(jobs)
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

// BenchmarkPolyShapes is what one call costs by how many lanes share a message: polyCostCall and polyCostRow come from it.
func BenchmarkPolyShapes(b *testing.B) {
	polyNeeds512(b)
	for log := range polyCostCall {
		for _, n := range []int{0, 64, 1440, 8920} {
			jobs, do := benchJobs(polyLaneCount>>log, n), inLanes(log)
			rows := polyRows(polyBlocks(&jobs[0]), log)
			b.Run(fmt.Sprintf("lanes=%d/len=%d/rows=%d", 1<<log, n, rows), func(b *testing.B) {
				b.SetBytes(int64(n * len(jobs)))
				for b.Loop() {
					do(jobs)
				}
			})
		}
	}
}
