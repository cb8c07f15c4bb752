// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
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
		if d, err := testbed.ThreadTime(pid); err == nil {
			times[pid] = d.Nanoseconds()
		}
	}
	return times
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
