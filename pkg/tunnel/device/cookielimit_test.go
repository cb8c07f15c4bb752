// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"
	"testing"
	"time"
)

// TestBucketAllowsRateAndBurst counts the events that pass when more than the rate are tried at regular intervals.
func TestBucketAllowsRateAndBurst(t *testing.T) {
	for _, c := range []struct {
		rate, burst int64
		every       time.Duration
		want        int
	}{
		{64, 256, time.Second, 5},               // slower than the rate: all that are tried
		{50, 256, time.Millisecond, 256 + 50*4}, // faster
		{50, 1, time.Millisecond, 1 + 50*4},     // without a burst
		{8192, 1024, 10 * time.Microsecond, 1024 + 8192*4},
	} {
		var b bucket
		passed := 0
		for now := time.Hour; now <= time.Hour+4*time.Second; now += c.every {
			if b.allow(int64(now), c.rate, c.burst) {
				passed++
			}
		}
		if slack := c.want / 50; passed < c.want-slack || passed > c.want {
			t.Errorf("rate %d, burst %d, one event every %s: %d pass in four seconds, want %d", c.rate, c.burst, c.every, passed, c.want)
		}
	}
}

func TestBucketCountsConcurrentEvents(t *testing.T) {
	const burst, callers = 1000, 8
	var b bucket
	var passed [callers]int
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range burst {
				if b.allow(int64(time.Hour), 10, burst) {
					passed[i]++
				}
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range passed {
		total += n
	}
	if total != burst {
		t.Errorf("%d events pass at one instant, want %d", total, burst)
	}
}
