// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync/atomic"
)

// budgetShare is the largest ratio of one lane's part of a budget to the part that is left. So
// one busy lane gets 8/9, two get 8/17 each, and another that becomes busy still finds some.
// Switches divide their packet memory so (Choudhury and Hahne, "Dynamic Queue Length Thresholds
// for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998).
const budgetShare = 8

// Budget is an amount that the lanes of an engine share. Each lane has a reserve of it. The rest goes in chunks to the lanes that need it.
type Budget struct {
	Reserve, chunk int64
	Left           atomic.Int64
}

// Init divides total among lanes. Half of it, at most reserve for each lane, is reserved.
func (b *Budget) Init(total, reserve, chunk int64, lanes int) {
	b.Reserve, b.chunk = min(reserve, total/2/int64(lanes)), chunk
	b.Left.Store(total - b.Reserve*int64(lanes))
}

// take takes a chunk for a lane that has taken so much before, if its share allows it.
func (b *Budget) take(taken int64) bool {
	for {
		left := b.Left.Load()
		if left < b.chunk || taken+b.chunk > budgetShare*(left-b.chunk) {
			return false
		}
		if b.Left.CompareAndSwap(left, left-b.chunk) {
			return true
		}
	}
}

// Allowance is one lane's part of a budget. It belongs to one goroutine.
type Allowance struct {
	Budget *Budget
	taken  int64 // from the budget, beyond the reserve
}

// Limit returns the amount that the lane may use.
func (a *Allowance) Limit() int { return int(a.Budget.Reserve + a.taken) }

// Exceeded reports whether used reaches the limit, and no chunk is to be had.
func (a *Allowance) Exceeded(used int) bool {
	for used >= a.Limit() {
		if !a.Budget.take(a.taken) {
			return true
		}
		a.taken += a.Budget.chunk
	}
	return false
}

// Shrink returns the chunks that are not used, but for one: a queue whose length wavers does not take and return one all the time.
func (a *Allowance) Shrink(used int) {
	for a.taken > 0 && used+2*int(a.Budget.chunk) <= a.Limit() {
		a.taken -= a.Budget.chunk
		a.Budget.Left.Add(a.Budget.chunk)
	}
}

// Close returns all chunks.
func (a *Allowance) Close() {
	a.Budget.Left.Add(a.taken)
	a.taken = 0
}
