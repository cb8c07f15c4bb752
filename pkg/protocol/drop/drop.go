// SPDX-License-Identifier: Apache-2.0

package drop

import "sync/atomic"

//go:generate go run gen.go ../../../bpf/include/drop_reasons.h reasons.go

// Reason is the reason for which a packet was discarded. None (zero) means that it was not.
type Reason uint8

// String returns the reason's stable name, as used in metric labels: lower case with underscores.
func (r Reason) String() string {
	if int(r) < len(names) {
		return names[r]
	}
	return "unknown"
}

// Help returns a short description for operators.
func (r Reason) Help() string {
	if int(r) < len(helps) {
		return helps[r]
	}
	return ""
}

// Counters counts dropped packets by reason. It is safe for concurrent use. Writers with Counters of their own never
// contend.
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
