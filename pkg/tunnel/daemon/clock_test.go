// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestClockWatchEndsWithItsContext does not cover a jump, which would need the host's clock to be set.
func TestClockWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	before := timers(t)
	if err := watchClock(ctx, func() {}); err != nil {
		t.Fatal(err)
	}
	if n := timers(t); n != before+1 {
		t.Errorf("got %d additional timers, want 1", n-before)
	}
	cancel()
	expect.Eventually(t, "the timer is closed", func() bool { return timers(t) == before })
}

// timers returns how many descriptors of this process are timers.
func timers(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc: ", err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, "timerfd") {
			n++
		}
	}
	return n
}
