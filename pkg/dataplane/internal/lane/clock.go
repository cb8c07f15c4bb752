// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Clock returns monotonic nanoseconds since an arbitrary start. Lanes read it once per batch. Any goroutine may call it.
type Clock func() int64

// NewClock returns a clock in nanoseconds since the call. It never returns 0, which means "never" elsewhere.
func NewClock() Clock {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

// suspendCheck is the time in ns after which BootClock checks again whether the machine was suspended.
const suspendCheck = 10e6

// BootClock returns CLOCK_BOOTTIME, which advances during suspend. The in-kernel WireGuard uses it too: a session must expire in time even
// if the machine was suspended. For at most 10 ms after a suspend it does not include that suspend yet.
func BootClock() Clock {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return NewClock()
	}
	return newBootClock(NewClock(), func() int64 {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // the call above has succeeded, and nothing else can fail
		return ts.Nano()
	})
}

// newBootClock adds the time in suspend to monotonic. Go reads its monotonic clock through the vDSO, and boot with a system call, which
// takes 280 to 460 ns.
func newBootClock(monotonic Clock, boot func() int64) Clock {
	var offset, next atomic.Int64 // boot less monotonic; when to read it again
	clock := func() int64 {
		now := monotonic()
		if now >= next.Load() {
			next.Store(now + suspendCheck)
			at := boot()
			now = monotonic() // later than boot, so the difference is never too large
			for old := offset.Load(); at-now > old && !offset.CompareAndSwap(old, at-now); old = offset.Load() {
			}
		}
		return now + offset.Load()
	}
	clock() // until the first reading ends, concurrent ones would return the time since start
	return clock
}
