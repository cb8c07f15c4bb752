// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// MinSlice is the shortest time slice that the kernel grants.
const MinSlice = 100 * time.Microsecond

// minNice is the lowest nice value, which has the highest priority.
const minNice = -20

// ErrNice means that all settings were applied except the nice value.
var ErrNice = errors.New("no permission to lower the nice value (needs CAP_SYS_NICE)")

// Options are the scheduling parameters of a thread.
type Options struct {
	// Slice is the requested time slice; 0 keeps the kernel's default.
	Slice time.Duration
	// Batch selects SCHED_BATCH (sched(7)): the thread does not preempt others when it wakes, but has an equal share
	// once it runs. It starts at once on an idle core, and rarely on a busy one.
	Batch bool
	// Nice is added to the thread's current nice value. A negative Nice needs CAP_SYS_NICE.
	Nice int
}

// Thread is a thread that Lock has locked. Its methods belong to the locked goroutine.
type Thread struct {
	own, yielding *unix.SchedAttr // nil if the policy was inherited, or Lock has failed
}

// Lock locks the calling goroutine to its thread for the rest of its life; the thread ends with the goroutine. It sets
// the thread's name, of which the kernel keeps 15 bytes, and its scheduling parameters. A policy other than
// SCHED_NORMAL was inherited by the process and stays as it is. After an error the goroutine is locked nevertheless.
func Lock(name string, o Options) (Thread, error) {
	runtime.LockOSThread()
	if err := setName(name); err != nil {
		return Thread{}, fmt.Errorf("naming the thread %s: %w", name, err)
	}
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return Thread{}, fmt.Errorf("reading the scheduling attributes of thread %s: %w", name, err)
	}
	if attr.Policy != unix.SCHED_NORMAL {
		return Thread{}, nil
	}
	usual := *attr
	if o.Batch {
		attr.Policy = unix.SCHED_BATCH
	}
	attr.Runtime = uint64(max(o.Slice.Nanoseconds(), 0))
	attr.Nice = int32(max(int(usual.Nice)+o.Nice, minNice))
	err = unix.SchedSetAttr(0, attr, 0)
	if errors.Is(err, unix.EPERM) && attr.Nice < usual.Nice {
		attr.Nice = usual.Nice
		if err = unix.SchedSetAttr(0, attr, 0); err == nil {
			err = ErrNice
		}
	}
	if err != nil && !errors.Is(err, ErrNice) {
		return Thread{}, fmt.Errorf("setting the scheduling attributes of thread %s: %w", name, err)
	}
	usual.Policy, usual.Runtime, usual.Nice = unix.SCHED_BATCH, 0, max(usual.Nice, attr.Nice)
	return Thread{own: attr, yielding: &usual}, err
}

// Yield lets applications run before the thread, or restores the parameters of Lock. A thread that
// yields has the nice value from before Lock, unless Lock's is higher, the kernel's time slice,
// and the policy SCHED_BATCH. So it preempts nobody when it wakes. To restore a nice value may
// fail as in Lock; the thread goes on to yield then.
func (t Thread) Yield(yield bool) error {
	attr := t.own
	if yield {
		attr = t.yielding
	}
	if attr == nil {
		return nil
	}
	err := unix.SchedSetAttr(0, attr, 0)
	if errors.Is(err, unix.EPERM) {
		return ErrNice
	}
	if err != nil {
		return fmt.Errorf("setting the scheduling attributes of a thread: %w", err)
	}
	return nil
}
