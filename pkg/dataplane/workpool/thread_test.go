// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestThreadClockSeparatesRunTimeFromRunDelay(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var s threadClock
	s.elapsed()
	for ran := int64(0); ran < 1e6; { // a millisecond of work
		r, lost := s.elapsed()
		if r < 0 || lost < 0 {
			t.Fatal(r, lost)
		}
		ran += r
	}
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
	if ran, lost := s.elapsed(); lost < 2e6-ran {
		t.Errorf("slept 2 ms: run time %d ns, run delay %d ns", ran, lost)
	}
}
