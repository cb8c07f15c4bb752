// SPDX-License-Identifier: Apache-2.0

package crew

import "golang.org/x/sys/unix"

// stopwatch tells for how long a thread was running, and for how long others were where it wanted to.
type stopwatch struct{ wall, cpu int64 }

// lap returns both, in nanoseconds, since the last lap of the calling thread, which has not slept meanwhile.
func (s *stopwatch) lap() (ran, lost int64) {
	now := stopwatch{read(unix.CLOCK_MONOTONIC), read(unix.CLOCK_THREAD_CPUTIME_ID)}
	ran = now.cpu - s.cpu
	lost = max(now.wall-s.wall-ran, 0)
	*s = now
	return ran, lost
}

func read(clock int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts) // both clocks are as old as the oldest kernel
	return ts.Nano()
}

// giveWay offers the core to other threads.
func giveWay() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
