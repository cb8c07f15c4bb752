// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// TestWatchingTheClockEndsWithItsContext: that a jump is told cannot be tested without one.
func TestWatchingTheClockEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	before := timers(t)
	if err := watchClock(ctx, func() {}); err != nil {
		t.Fatal(err)
	}
	if n := timers(t); n != before+1 {
		t.Errorf("%d timers more are open, want 1", n-before)
	}
	cancel()
	for deadline := time.Now().Add(30 * time.Second); timers(t) != before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a timer is left open")
		}
	}
}

// timers is how many of our descriptors are timers.
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
