// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inThread runs f on a goroutine of its own, which ends its thread.
func inThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func TestAThreadOfItsOwnHasItsNameAndItsSliceAndKeepsItsNiceValue(t *testing.T) {
	inThread(func() {
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if err := Own("rw-test-of-a-long-name", 300*time.Microsecond); err != nil {
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
			t.Log("this kernel has no slices of a thread's own")
			return
		}
		if after.Runtime != 300_000 {
			t.Errorf("the slice is %d ns", after.Runtime)
		}
	})
}

func TestTheSliceEndsWithItsGoroutine(t *testing.T) {
	var owned int
	inThread(func() {
		owned = unix.Gettid()
		if err := Own("rw-test", MinSlice); err != nil {
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

func TestANameWithAZeroIsRefused(t *testing.T) {
	inThread(func() {
		if err := Own("a\x00b", MinSlice); err == nil {
			t.Error("no error")
		}
	})
}
