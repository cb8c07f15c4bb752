// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBootClockCountsSuspend(t *testing.T) {
	mono, suspended, reads := int64(5e9), int64(7e9), 0
	clock := newBootClock(func() int64 { return mono }, func() int64 { reads++; return mono + suspended })
	if reads != 1 {
		t.Errorf("%d reads of CLOCK_BOOTTIME before the clock is used, want 1: a concurrent reader would get the monotonic time", reads)
	}
	if got := clock(); got != 12e9 {
		t.Errorf("got %d ns, want the boot time 12e9", got)
	}
	suspended += int64(time.Hour)
	mono += suspendCheck
	if got, want := clock(), mono+suspended; got != want {
		t.Errorf("after a suspend: got %d ns, want %d", got, want)
	}
	for range 1000 {
		mono++
		clock()
	}
	if reads != 2 {
		t.Errorf("%d reads of CLOCK_BOOTTIME, want one per %v", reads, time.Duration(suspendCheck))
	}
}

// TestBootClockNeverGoesBack reads it in several goroutines, which the scheduler interrupts between the two clocks.
func TestBootClockNeverGoesBack(t *testing.T) {
	clock := BootClock()
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			last := int64(0)
			for range 200_000 {
				now := clock()
				if now < last {
					t.Errorf("%d ns after %d", now, last)
					return
				}
				last = now
			}
		})
	}
	readers.Wait()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	if now := clock(); now < ts.Nano()-int64(time.Minute) || now > ts.Nano()+int64(time.Minute) {
		t.Errorf("%d ns, and CLOCK_BOOTTIME is %d", now, ts.Nano())
	}
}

func BenchmarkBootClock(b *testing.B) {
	clock := BootClock()
	for b.Loop() {
		clock()
	}
}
