// SPDX-License-Identifier: Apache-2.0

// Package thread gives a goroutine of the fast path a thread of its own, with a name and a short time slice.
//
// A lane needs the processor often and briefly. The scheduler (EEVDF) serves first whose request ends first, so a thread
// that asks for short slices waits less for each and gets no larger share by it; the default of some milliseconds is what a
// lane would wait behind a busy application. A slice of a thread's own is in Linux from 6.12 (857b158dc5e8, "sched/eevdf:
// Use sched_attr::sched_runtime to set request/slice suggestion"); older kernels take the value and ignore it.
package thread

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// MinSlice is the shortest slice that the kernel grants.
const MinSlice = 100 * time.Microsecond

// Own binds the calling goroutine to its thread for the rest of its life, and the thread ends with it. The thread is called
// name, of which the kernel keeps 15 bytes, and asks for time slices of the given length; its nice value and policy stay as they
// are. After an error the goroutine has its thread nevertheless.
func Own(name string, slice time.Duration) error {
	runtime.LockOSThread()
	if err := setName(name); err != nil {
		return fmt.Errorf("naming the thread %s: %w", name, err)
	}
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("reading how thread %s is scheduled: %w", name, err)
	}
	if attr.Policy != unix.SCHED_NORMAL {
		return nil // whoever started us under another policy knows better
	}
	attr.Runtime = uint64(slice.Nanoseconds())
	if err := unix.SchedSetAttr(0, attr, 0); err != nil {
		return fmt.Errorf("asking for time slices of %s for thread %s: %w", slice, name, err)
	}
	return nil
}
