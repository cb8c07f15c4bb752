// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of /proc/stat on every architecture that ropewalk runs on.
const ticksPerSecond = 100

// BusyCPU is the time that the machine's processors have worked since boot, over all processes and the kernel.
func BusyCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("reading the machine's CPU time: %w", err)
	}
	return parseBusyCPU(string(text))
}

// parseBusyCPU reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal guest guest_nice.
// Idle and iowait are not work, steal was somebody else's, and guest is in user already.
func parseBusyCPU(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, errors.New("parsing /proc/stat: no cpu line")
	}
	var ticks uint64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseUint(f[i], 10, 62)
		if err != nil {
			return 0, fmt.Errorf("parsing /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
}

// groupMembers are the live processes of a process group.
func groupMembers(group int) []int {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	var pids []int
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		pid, pgrp, zombie := parsePidStat(string(text))
		if pgrp == group && !zombie {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// parsePidStat reads /proc/PID/stat: pid (comm) state ppid pgrp. comm may hold anything, parentheses too.
func parsePidStat(text string) (pid, pgrp int, zombie bool) {
	head, _, ok := strings.Cut(text, " ")
	end := strings.LastIndexByte(text, ')')
	if !ok || end < 0 {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(head)
	rest := strings.Fields(text[end+1:])
	if err != nil || len(rest) < 3 {
		return 0, 0, false
	}
	if pgrp, err = strconv.Atoi(rest[2]); err != nil {
		return 0, 0, false
	}
	return pid, pgrp, rest[0] == "Z" || rest[0] == "X"
}

// cpuTime is the work of all processes so far, the kernel's work for them included.
func cpuTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil {
			sum += parseCPUTime(string(text))
		}
	}
	return sum
}

// parseCPUTime reads utime and stime, fields 14 and 15, of a /proc/PID/stat; it returns 0 for
// other text.
func parseCPUTime(text string) time.Duration {
	rest := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // begins with field 3
	if len(rest) < 13 {
		return 0
	}
	var ticks uint64
	for _, field := range rest[11:13] {
		n, err := strconv.ParseUint(field, 10, 62)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond)
}

// peakRSS is the largest resident set that each process has had, summed, in bytes.
func peakRSS(pids []int) (uint64, error) {
	var sum uint64
	for _, pid := range pids {
		kib, err := statusField(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
		if err != nil {
			return 0, err
		}
		sum += kib << 10
	}
	return sum, nil
}

// contextSwitches returns the context switches of all threads of the processes, voluntary and not,
// since they began. A thread that ends takes its own with it.
func contextSwitches(pids []int) (uint64, error) {
	var sum uint64
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid)) // the pattern is good
		if len(tasks) == 0 {
			return 0, fmt.Errorf("counting context switches: process %d is gone", pid)
		}
		for _, path := range tasks {
			for _, key := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
				n, err := statusField(path, key)
				if err == nil {
					sum += n
				}
			}
		}
	}
	return sum, nil
}

// threadTimes is the CPU time of all threads of the processes since they began. A thread that ends takes its own with it.
func threadTimes(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid)) // the pattern is good
		for _, path := range tasks {
			tid, _ := strconv.Atoi(filepath.Base(path))
			if d, err := ThreadTime(tid); err == nil { // the thread may have ended
				sum += d
			}
		}
	}
	return sum
}

// ThreadTime is the CPU time of a thread by the scheduler's clock, which counts nanoseconds, not ticks.
func ThreadTime(tid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	if err != nil {
		return 0, fmt.Errorf("reading a thread's time: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading a thread's time: %w", err)
	}
	return time.Duration(ns), nil
}

// statusField reads one number of a /proc/PID/status.
func statusField(path, key string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", key, err)
	}
	return parseStatusField(string(text), key)
}

func parseStatusField(text, key string) (uint64, error) {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		f := strings.Fields(value)
		if !ok || name != key || len(f) == 0 {
			continue
		}
		n, err := strconv.ParseUint(f[0], 10, 62)
		if err != nil {
			return 0, fmt.Errorf("parsing %s: %w", key, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("parsing a process's status: no %s", key)
}
