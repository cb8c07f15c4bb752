// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime/debug"
	"testing"
)

func TestHeapIsLimitedByContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for _, c := range []struct {
		memory, gomemlimit string
		want               int64
		isError            bool
	}{
		{"", "", before, false},
		{"536870912", "", 483183821, false},
		{"536870912", "1GiB", before, false}, // the runtime has read it at the start
		{"512Mi", "", before, true},
		{"0", "", before, true},
		{"-1", "", before, true},
	} {
		debug.SetMemoryLimit(before)
		t.Setenv("MEMORY_LIMIT", c.memory)
		t.Setenv("GOMEMLIMIT", c.gomemlimit)
		err := limitHeap()
		if got := debug.SetMemoryLimit(-1); got != c.want || (err != nil) != c.isError {
			t.Errorf("MEMORY_LIMIT=%q GOMEMLIMIT=%q: limit %d, %v; want %d, an error: %v", c.memory, c.gomemlimit, got, err, c.want, c.isError)
		}
	}
}

func TestCollectorRunsMoreOften(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for gogc, want := range map[string]int{"": heapGrowth, "100": 100} {
		debug.SetGCPercent(100)
		t.Setenv("GOGC", gogc)
		if err := tuneCollector(); err != nil {
			t.Fatal(err)
		}
		if got := debug.SetGCPercent(100); got != want {
			t.Errorf("GOGC=%q: %d %%, want %d", gogc, got, want)
		}
	}
}
