// SPDX-License-Identifier: Apache-2.0

// Package thread gives a goroutine of the fast path a thread of its own, with a name, a short time slice and precedence.
//
// A lane needs the processor often and briefly. The scheduler (EEVDF) serves first whose request ends first, so a thread
// that asks for short slices waits less for each and gets no larger share by it; the default of some milliseconds is what a
// lane would wait behind a busy application. A slice of a thread's own is in Linux from 6.12 (857b158dc5e8, "sched/eevdf:
// Use sched_attr::sched_runtime to set request/slice suggestion"); older kernels take the value and ignore it.
//
// Precedence is what a kernel's own network path has by running in interrupts. Without it, a sender that knows no limit
// takes the time in which its packets would have been carried (Mogul and Ramakrishnan, "Eliminating receive livelock in
// an interrupt-driven kernel", 1996).
package thread

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// MinSlice is the shortest slice that the kernel grants.
const MinSlice = 100 * time.Microsecond

// minNice is the highest precedence there is.
const minNice = -20

// ErrNice says that the thread has all that was asked for except its nice value.
var ErrNice = errors.New("no right to raise the priority (CAP_SYS_NICE)")

// Options say how a thread is scheduled.
type Options struct {
	// Slice is the time slice to ask for; 0 leaves it to the kernel.
	Slice time.Duration
	// Batch makes the thread one that does not preempt others when it wakes (SCHED_BATCH, sched(7)), and is as good as they are
	// once it runs: it begins at once where a core is idle, and hardly anywhere else.
	Batch bool
	// Nice is added to the nice value that the thread has; below zero it takes CAP_SYS_NICE.
	Nice int
}

// Own binds the calling goroutine to its thread for the rest of its life, and the thread ends with it. The thread is called
// name, of which the kernel keeps 15 bytes. A policy other than the ordinary one was chosen by whoever started the process,
// and stays as it is. After an error the goroutine has its thread nevertheless.
func Own(name string, o Options) error {
	runtime.LockOSThread()
	if err := setName(name); err != nil {
		return fmt.Errorf("naming the thread %s: %w", name, err)
	}
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("reading how thread %s is scheduled: %w", name, err)
	}
	if attr.Policy != unix.SCHED_NORMAL {
		return nil
	}
	if o.Batch {
		attr.Policy = unix.SCHED_BATCH
	}
	attr.Runtime = uint64(max(o.Slice.Nanoseconds(), 0))
	before := attr.Nice
	attr.Nice = int32(max(int(before)+o.Nice, minNice))
	err = unix.SchedSetAttr(0, attr, 0)
	if errors.Is(err, unix.EPERM) && attr.Nice < before {
		attr.Nice = before
		if err = unix.SchedSetAttr(0, attr, 0); err == nil {
			return ErrNice
		}
	}
	if err != nil {
		return fmt.Errorf("setting how thread %s is scheduled: %w", name, err)
	}
	return nil
}
