// SPDX-License-Identifier: Apache-2.0

package crew

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStopwatchTellsRunningFromWaiting(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var s stopwatch
	s.lap()
	for ran := int64(0); ran < 1e6; { // a millisecond of work
		r, lost := s.lap()
		if r < 0 || lost < 0 {
			t.Fatal(r, lost)
		}
		ran += r
	}
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
	if ran, lost := s.lap(); lost < 2e6-ran {
		t.Errorf("slept 2 ms: ran %d ns, lost %d", ran, lost)
	}
}
