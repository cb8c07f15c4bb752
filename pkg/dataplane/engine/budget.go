// SPDX-License-Identifier: Apache-2.0

package engine

import "sync/atomic"

// budgetShare is the largest ratio of what one lane has from a budget to what is left of it. So one busy lane gets 8/9, two get 8/17 each,
// and another that becomes busy still finds some. Switches divide their packet memory so (Choudhury and Hahne, "Dynamic Queue Length
// Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998).
const budgetShare = 8

// budget is an amount that the lanes of an engine share. Each lane has a reserve of it. The rest goes in chunks to the lanes that need it.
type budget struct {
	reserve, chunk int64
	left           atomic.Int64
}

// init divides total among lanes. Half of it, at most reserve for each lane, is reserved.
func (b *budget) init(total, reserve, chunk int64, lanes int) {
	b.reserve, b.chunk = min(reserve, total/2/int64(lanes)), chunk
	b.left.Store(total - b.reserve*int64(lanes))
}

// take takes a chunk for a lane that has taken so much before, if its share allows it.
func (b *budget) take(taken int64) bool {
	for {
		left := b.left.Load()
		if left < b.chunk || taken+b.chunk > budgetShare*(left-b.chunk) {
			return false
		}
		if b.left.CompareAndSwap(left, left-b.chunk) {
			return true
		}
	}
}

// allowance is one lane's part of a budget. It belongs to one goroutine.
type allowance struct {
	budget *budget
	taken  int64 // from the budget, beyond the reserve
}

// limit returns the amount that the lane may use.
func (a *allowance) limit() int { return int(a.budget.reserve + a.taken) }

// exceeded reports whether used reaches the limit, and no chunk is to be had.
func (a *allowance) exceeded(used int) bool {
	for used >= a.limit() {
		if !a.budget.take(a.taken) {
			return true
		}
		a.taken += a.budget.chunk
	}
	return false
}

// shrink returns the chunks that are not used, but for one: a queue whose length wavers does not take and return one all the time.
func (a *allowance) shrink(used int) {
	for a.taken > 0 && used+2*int(a.budget.chunk) <= a.limit() {
		a.taken -= a.budget.chunk
		a.budget.left.Add(a.budget.chunk)
	}
}

// close returns all chunks.
func (a *allowance) close() {
	a.budget.left.Add(a.taken)
	a.taken = 0
}
