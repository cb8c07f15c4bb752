// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestClockWatchEndsWithItsContext does not cover a jump, which would need the host's clock to be set.
func TestClockWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	before := timers(t)
	if err := watchClock(ctx, func(bool) {}); err != nil {
		t.Fatal(err)
	}
	if n := timers(t); n != before+1 {
		t.Errorf("got %d additional timers, want 1", n-before)
	}
	cancel()
	expect.Eventually(t, "the timer is closed", func() bool { return timers(t) == before })
}

// fakeClocks are clocks that a suspend advances as the kernel's.
type fakeClocks struct{ monotonic, suspended, perReading int64 }

func (c *fakeClocks) read(clock int32) int64 {
	c.monotonic += c.perReading
	if clock == unix.CLOCK_BOOTTIME {
		return c.monotonic + c.suspended
	}
	return c.monotonic
}

func TestSuspendMeterFindsSuspends(t *testing.T) {
	for _, perReading := range []int64{0, 1, 1e8} {
		c := &fakeClocks{perReading: perReading}
		m := suspendMeter{read: c.read}
		if m.suspended() {
			t.Error("a machine that was never suspended counts as suspended")
		}
		c.monotonic += 60e9 // the wall clock was set a minute later
		if m.suspended() {
			t.Error("a change of the wall clock counts as a suspend")
		}
		c.suspended += 2e9
		if !m.suspended() {
			t.Errorf("with %d ns per reading: a suspend of 2 s was missed", perReading)
		}
		c.perReading *= 3 // the thread waits for the CPU
		for range 2 {
			if m.suspended() {
				t.Error("one suspend was reported twice")
			}
		}
	}
}

// TestResumeRenewsSessionsAndClockChangeDoesNot calls clockJumped as watchClock does: only the host's clock could make that call it.
func TestResumeRenewsSessionsAndClockChangeDoesNot(t *testing.T) {
	if suspendsOften(autosleepFile) {
		t.Skip("needs a kernel that does not suspend the machine by itself")
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		d := newUpgradeDaemon(nil)
		d.tunnel.Device = a.Device
		a.ProbePeer(b.Public()) // starts a handshake
		for _, suspended := range []bool{false, true} {
			time.Sleep(time.Second) // fake clock: a peer accepts one initiation in 50 ms
			before := a.PeerStatus(b).LastHandshake
			if before.IsZero() {
				t.Fatal("there is no session")
			}
			d.clockJumped(suspended)
			time.Sleep(time.Second)
			if renewed := a.PeerStatus(b).LastHandshake.After(before); renewed != suspended {
				t.Errorf("suspended: %v, session renewed: %v", suspended, renewed)
			}
		}
	})
}

func TestAutosleepIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "autosleep")
	if suspendsOften(file) {
		t.Error("a kernel without autosleep counts as one that uses it")
	}
	for content, want := range map[string]bool{"off\n": false, "mem\n": true} {
		expect.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		if got := suspendsOften(file); got != want {
			t.Errorf("autosleep %q: got %v, want %v", content, got, want)
		}
	}
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
