// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"time"
)

// meter times batches of the same work. What counts is the median: a batch that the scheduler interrupted, or that came
// when a cache was cold, does not.
type meter struct {
	samples []float64 // seconds
}

// maxSamples bounds a meter's memory; a stretch of microseconds-long batches has more.
const maxSamples = 1 << 17

func (m *meter) add(d time.Duration) {
	if len(m.samples) < maxSamples {
		m.samples = append(m.samples, d.Seconds())
	}
}

// perSecond returns the units of work per second of one core, given the number of units in a batch.
func (m *meter) perSecond(units int) float64 {
	sorted := slices.Sorted(slices.Values(m.samples))
	if len(sorted) == 0 || sorted[(len(sorted)-1)/2] == 0 {
		return 0
	}
	return float64(units) / sorted[(len(sorted)-1)/2]
}

// repeat calls f until the stretch is over or ctx is done. The first calls, with warm false, only warm up
// caches and must not be counted.
func repeat(ctx context.Context, stretch time.Duration, f func(warm bool) error) error {
	const warming = 16
	var end time.Time
	for i := 0; ctx.Err() == nil; i++ {
		if i == warming {
			end = time.Now().Add(stretch)
		}
		if i > warming && time.Now().After(end) {
			return nil
		}
		if err := f(i >= warming); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
