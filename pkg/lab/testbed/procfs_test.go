// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBusyCPUCountsWork(t *testing.T) {
	got, err := parseBusyCPU("cpu  100 20 30 99999 7777 4 6 55555 50 1\ncpu0 1 2 3 4 5 6 7\n")
	if err != nil || got != 1600*time.Millisecond {
		t.Errorf("%v, %v; want 1.6s: user, nice, system, irq and softirq", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8", "cpu -1 2 3 4 5 6 7 8"} {
		if _, err := parseBusyCPU(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if n, err := BusyCPU(); err != nil || n <= 0 {
		t.Errorf("this machine: %v, %v", n, err)
	}
}

func TestPidStatParsesSpecialCharactersInNames(t *testing.T) {
	for _, c := range []struct {
		text      string
		pid, pgrp int
		zombie    bool
	}{
		{"12 (ropewalk) S 1 12 12 0", 12, 12, false},
		{"13 (a) b) (c) R 1 7 12 0", 13, 7, false},
		{"14 (gone) Z 1 7 12 0", 14, 7, true},
		{"15 (cut", 0, 0, false},
		{"", 0, 0, false},
		{"x (y) S 1 2", 0, 0, false},
		{"16 (z) S 1 q", 0, 0, false},
	} {
		pid, pgrp, zombie := parsePidStat(c.text)
		if pid != c.pid || pgrp != c.pgrp || zombie != c.zombie {
			t.Errorf("%q: %d %d %v", c.text, pid, pgrp, zombie)
		}
	}
}

func TestStatusFieldMatchesWholeName(t *testing.T) {
	const text = "Name:\tx\nVmHWM:\t  1234 kB\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n"
	for key, want := range map[string]uint64{"VmHWM": 1234, "voluntary_ctxt_switches": 5, "nonvoluntary_ctxt_switches": 7} {
		if got, err := parseStatusField(text, key); got != want || err != nil {
			t.Errorf("%s = %d, %v", key, got, err)
		}
	}
	for _, key := range []string{"Name", "ctxt_switches", ""} {
		if _, err := parseStatusField(text, key); err == nil {
			t.Errorf("%q was found", key)
		}
	}
}

func TestProcessReportsMemoryAndContextSwitches(t *testing.T) {
	pids := []int{os.Getpid()}
	rss, err := peakRSS(pids)
	if err != nil || rss < 1<<20 {
		t.Errorf("peak of %d bytes, %v", rss, err)
	}
	if n, err := contextSwitches(pids); err != nil || n == 0 {
		t.Errorf("%d context switches, %v", n, err)
	}
	if !slices.Contains(groupMembers(syscall.Getpgrp()), os.Getpid()) {
		t.Error("the process is not in its group")
	}
}

func TestThreadTimesSumAllThreads(t *testing.T) {
	const work = 5 * time.Millisecond
	var working sync.WaitGroup
	end := make(chan struct{})
	defer close(end)
	for range 2 {
		working.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for tid := unix.Gettid(); ; {
				if d, err := ThreadTime(tid); err != nil || d >= work {
					break
				}
			}
			working.Done()
			<-end
		}()
	}
	working.Wait()
	first, err := ThreadTime(os.Getpid())
	if sum := threadTimes([]int{os.Getpid()}); err != nil || sum < first+work {
		t.Errorf("the process has worked for %s, its first thread alone for %s, %v", sum, first, err)
	}
}

func TestTailKeepsTheLastWholeLines(t *testing.T) {
	var log tail
	for range 1000 {
		_, _ = log.Write([]byte("a line of the log\n"))
	}
	_, _ = log.Write([]byte("the last\n"))
	got := log.String()
	if len(got) > tailLen || !strings.HasPrefix(got, "a line") || !strings.HasSuffix(got, "\nthe last") {
		t.Errorf("%d bytes: %q", len(got), got[:40])
	}
}
