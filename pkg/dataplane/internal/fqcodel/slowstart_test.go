// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"fmt"
	"testing"
	"time"
)

// TestSlowStartLeavesLinkBusy has one sender whose slow start only a signal ends. The signals that follow must not take the
// window far below what fills the path, and the link stays busy afterwards.
func TestSlowStartLeavesLinkBusy(t *testing.T) {
	for _, rtt := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
		for _, drops := range []bool{false, true} {
			t.Run(fmt.Sprintf("rtt=%v/drops=%v", rtt, drops), func(t *testing.T) {
				l := newLoop(1, 1, 43, rtt, 1e9, drops)
				full := float64(rtt) / l.perByte / segment
				s := &l.senders[0]
				peak, least := 0.0, 1e9
				for l.now < int64(3*time.Second) {
					l.run(time.Millisecond)
					if peak = max(peak, s.window); s.epoch != 0 {
						least = min(least, s.window)
					}
				}
				l.served = 0
				start := l.now
				l.run(7 * time.Second)
				used := float64(l.served*segment) * l.perByte / float64(l.now-start)
				t.Logf("window from %.2f to %.2f times what fills the path, then utilisation %.3f", peak/full, least/full, used)
				if peak < 2*full || least < 0.75*full || used < 0.95 {
					t.Errorf("window from %.2f to %.2f times what fills the path, then utilisation %.3f", peak/full, least/full, used)
				}
			})
		}
	}
}
