// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// napiTimes returns the CPU times of the kernel threads that receive from cables, in ns, by pid.
func napiTimes() map[int]int64 {
	times := map[int]int64{}
	comms, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is valid
	for _, path := range comms {
		name, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(name), "napi/cable0-") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if ns, err := schedTime(pid); err == nil {
			times[pid] = ns
		}
	}
	return times
}

// schedTime returns the CPU time of a thread, in ns.
func schedTime(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading a kernel thread's time: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading a kernel thread's time: %w", err)
	}
	return ns, nil
}

// diffTimes returns the CPU time of each thread between two measurements, in descending order.
func diffTimes(before, after map[int]int64) (ns []int64) {
	for pid, t := range after {
		ns = append(ns, t-before[pid])
	}
	slices.Sort(ns)
	slices.Reverse(ns)
	return ns
}
