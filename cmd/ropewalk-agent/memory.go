// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
)

// heapGrowth is Go's GOGC: by how many percent the heap may grow between two collections. Lanes
// allocate nothing, so that most garbage comes from reconciles, which are rare. At 5,000 nodes the
// default of 100 takes 1.5 times as much memory.
const heapGrowth = 10

// tuneCollector sets Go's GOGC to heapGrowth, and the soft memory limit. GOGC and GOMEMLIMIT take precedence.
func tuneCollector() error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
	return limitHeap()
}

// limitHeap sets the soft memory limit of Go's runtime to 90 % of MEMORY_LIMIT, the container's limit in bytes. The rest is for
// memory that the runtime does not count: rings, and eBPF maps and programs. GOMEMLIMIT takes precedence. It returns an error if MEMORY_LIMIT
// is no positive number.
func limitHeap() error {
	text := os.Getenv("MEMORY_LIMIT")
	if text == "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit <= 0 {
		return usageError{fmt.Errorf("MEMORY_LIMIT=%s: want a number of bytes", text)}
	}
	debug.SetMemoryLimit(limit - limit/10)
	return nil
}

// heapLimit returns the soft memory limit in bytes; 0: none.
func heapLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}
