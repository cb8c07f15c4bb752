// SPDX-License-Identifier: Apache-2.0

package workpool

import "golang.org/x/sys/unix"

// threadClock measures how long a thread ran, and how long it was runnable without a CPU (the kernel's run_delay).
type threadClock struct{ wall, cpu int64 }

// elapsed returns both times in ns since the previous call on this thread, which must not have slept in between.
func (s *threadClock) elapsed() (runTime, runDelay int64) {
	now := threadClock{clockNanos(unix.CLOCK_MONOTONIC), clockNanos(unix.CLOCK_THREAD_CPUTIME_ID)}
	runTime = now.cpu - s.cpu
	runDelay = max(now.wall-s.wall-runTime, 0)
	*s = now
	return runTime, runDelay
}

func clockNanos(clock int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts) // all supported kernels have both clocks
	return ts.Nano()
}

// yieldCore offers the core to other threads (sched_yield).
func yieldCore() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
