// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inThread runs f on a new goroutine, whose thread ends with it.
func inThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func TestLockSetsNameAndSliceAndKeepsNice(t *testing.T) {
	inThread(func() {
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := Lock("rw-test-of-a-long-name", Options{Slice: 300 * time.Microsecond}); err != nil {
			t.Error(err)
			return
		}
		comm, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()))
		if err != nil || strings.TrimSpace(string(comm)) != "rw-test-of-a-lo" {
			t.Errorf("the thread is called %q (%v)", comm, err)
		}
		after, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if after.Nice != before.Nice || after.Policy != before.Policy {
			t.Errorf("nice %d and policy %d became %d and %d", before.Nice, before.Policy, after.Nice, after.Policy)
		}
		if before.Runtime == 0 {
			t.Log("this kernel has no per-thread time slices")
			return
		}
		if after.Runtime != 300_000 {
			t.Errorf("the slice is %d ns", after.Runtime)
		}
	})
}

func TestBatchSetsSchedBatch(t *testing.T) {
	inThread(func() {
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil || before.Policy != unix.SCHED_NORMAL {
			t.Logf("not from policy %d (%v)", before.Policy, err)
			return
		}
		if _, err := Lock("rw-test", Options{Batch: true}); err != nil {
			t.Error(err)
			return
		}
		if after, err := unix.SchedGetAttr(0, 0); err != nil || after.Policy != unix.SCHED_BATCH || after.Nice != before.Nice {
			t.Errorf("policy %d, nice %d (%v)", after.Policy, after.Nice, err)
		}
	})
}

func TestThreadEndsWithItsGoroutine(t *testing.T) {
	var owned int
	inThread(func() {
		owned = unix.Gettid()
		if _, err := Lock("rw-test", Options{Slice: MinSlice}); err != nil {
			t.Error(err)
		}
	})
	for range 100 {
		inThread(func() {
			if unix.Gettid() == owned {
				t.Error("another goroutine was given the thread")
			}
		})
	}
}

func TestNameWithNULIsRejected(t *testing.T) {
	inThread(func() {
		if _, err := Lock("a\x00b", Options{}); err == nil {
			t.Error("no error")
		}
	})
}

func TestNiceIsAddedToCurrentValue(t *testing.T) {
	for _, add := range []int{1, 3, 100} {
		inThread(func() {
			before, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				t.Error(err)
				return
			}
			want := min(int(before.Nice)+add, 19)
			_, err = Lock("rw-test", Options{Nice: add})
			after, _ := unix.SchedGetAttr(0, 0)
			if err != nil || int(after.Nice) != want {
				t.Errorf("got %d and %d is %d (%v), want %d", before.Nice, add, after.Nice, err, want)
			}
		})
	}
}

// TestMissingNicePermissionKeepsOtherSettings drops the capability for its thread only.
func TestMissingNicePermissionKeepsOtherSettings(t *testing.T) {
	inThread(func() {
		runtime.LockOSThread() // before Lock: capabilities belong to the thread
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil || before.Nice <= minNice {
			t.Errorf("nice %d (%v)", before.Nice, err)
			return
		}
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NICE, &limit); err != nil || limit.Cur > 20 {
			t.Logf("this process may raise its priority without the capability (%d, %v)", limit.Cur, err)
			return
		}
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		if _, err := Lock("rw-test", Options{Slice: 300 * time.Microsecond, Nice: -5}); !errors.Is(err, ErrNice) {
			t.Errorf("got error %v, want %v", err, ErrNice)
		}
		after, err := unix.SchedGetAttr(0, 0)
		if err != nil || after.Nice != before.Nice || before.Runtime != 0 && after.Runtime != 300_000 {
			t.Errorf("nice %d, slice %d ns (%v)", after.Nice, after.Runtime, err)
		}
	})
}

func TestYieldAndBack(t *testing.T) {
	for _, nice := range []int{0, 1, -1} { // the last needs permission
		inThread(func() {
			runtime.LockOSThread()
			usual, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				t.Error(err)
				return
			}
			thread, err := Lock("rw-test", Options{Slice: 300 * time.Microsecond, Nice: nice})
			own, _ := unix.SchedGetAttr(0, 0)
			if nice < 0 && errors.Is(err, ErrNice) {
				return
			}
			if err != nil || usual.Policy == unix.SCHED_NORMAL && own.Policy != unix.SCHED_NORMAL {
				t.Errorf("nice %d: got policy %d, error %v, want %d", nice, own.Policy, err, unix.SCHED_NORMAL)
				return
			}
			if usual.Policy != unix.SCHED_NORMAL {
				return // as the test was started
			}
			for _, yield := range []bool{true, true, false} {
				want := *own
				if yield {
					want.Policy, want.Nice = unix.SCHED_BATCH, min(usual.Nice+int32(max(nice, 0)), 19)
				}
				if err := thread.Yield(yield); err != nil {
					t.Error(err)
				}
				got, err := unix.SchedGetAttr(0, 0)
				if err != nil || got.Policy != want.Policy || got.Nice != want.Nice || !yield && got.Runtime != want.Runtime ||
					yield && own.Runtime > 0 && got.Runtime == own.Runtime {
					t.Errorf("yield %v: %+v (%v), want %+v with the kernel's slice if it yields", yield, got, err, want)
				}
			}
		})
	}
}

func TestThreadWithInheritedPolicyKeepsIt(t *testing.T) {
	inThread(func() {
		runtime.LockOSThread()
		inherited, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return
		}
		inherited.Policy = unix.SCHED_BATCH
		if err := unix.SchedSetAttr(0, inherited, 0); err != nil {
			t.Error(err)
			return
		}
		thread, err := Lock("rw-test", Options{Slice: MinSlice, Nice: 1})
		if err != nil {
			t.Error(err)
		}
		for _, yield := range []bool{true, false} {
			if err := thread.Yield(yield); err != nil {
				t.Error(err)
			}
			if got, err := unix.SchedGetAttr(0, 0); err != nil || got.Policy != unix.SCHED_BATCH || got.Nice != inherited.Nice {
				t.Errorf("yield %v: %+v (%v), want %+v", yield, got, err, inherited)
			}
		}
	})
}

func TestZeroSliceIsKernelDefault(t *testing.T) {
	inThread(func() {
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil || before.Runtime == 0 {
			t.Logf("this kernel has no per-thread time slices (%v)", err)
			return
		}
		for _, slice := range []time.Duration{MinSlice, 0, MinSlice, -1} {
			if _, err := Lock("rw-test", Options{Slice: slice}); err != nil {
				t.Error(err)
				return
			}
		}
		if after, err := unix.SchedGetAttr(0, 0); err != nil || after.Runtime == uint64(MinSlice) {
			t.Errorf("the slice is %d ns (%v), was %d", after.Runtime, err, before.Runtime)
		}
	})
}
