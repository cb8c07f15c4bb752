// SPDX-License-Identifier: Apache-2.0

// Package drop holds the closed list of reasons for which ropewalk discards a packet. The list is defined once, in
// bpf/include/drop_reasons.h, for eBPF and Go alike. The package also holds the counters that lanes keep of them.
package drop

import "sync/atomic"

//go:generate go run gen.go ../../bpf/include/drop_reasons.h reasons.go

// Reason says why a packet was discarded. None (zero) means that it was not.
type Reason uint8

// String returns the reason's stable name, as used in metric labels: lower case with underscores.
func (r Reason) String() string {
	if int(r) < len(names) {
		return names[r]
	}
	return "unknown"
}

// Help returns one sentence for operators.
func (r Reason) Help() string {
	if int(r) < len(helps) {
		return helps[r]
	}
	return ""
}

// Counters counts dropped packets by reason. Safe for concurrent use; writers that own their Counters never contend.
type Counters struct {
	n [Count]atomic.Uint64
}

// Add counts n packets dropped for r; None is ignored.
func (c *Counters) Add(r Reason, n int) {
	if r != None && n > 0 {
		c.n[r].Add(uint64(n))
	}
}

// Get returns how many packets were dropped for r.
func (c *Counters) Get(r Reason) uint64 { return c.n[r].Load() }

// Snapshot adds the counters to sum. It is not atomic over all reasons.
func (c *Counters) Snapshot(sum *[Count]uint64) {
	for i := range c.n {
		sum[i] += c.n[i].Load()
	}
}
