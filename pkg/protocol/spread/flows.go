// SPDX-License-Identifier: Apache-2.0

package spread

import "time"

// DefaultGap is the pause after which a flow may take another port (a flowlet gap: Kandula et al., "Dynamic Load
// Balancing Without Packet Reordering", 2007). It must exceed the difference in delay between two ports. Queues
// differ by milliseconds; a receiver without free cores may delay one of them far longer.
const DefaultGap = 500 * time.Millisecond

const (
	// tickShift converts nanoseconds to ticks of 1,024 ns.
	tickShift = 10
	laneBits  = 8
	laneMask  = 1<<laneBits - 1
)

// ListenPort is the lane of Note. NewLoadsOf must not be called with it.
const ListenPort = 0

// Flows is a flowlet table, indexed by the upper bits of the flow hash (LetFlow, NSDI 2017). Flows that share an
// entry share a lane, which costs balance but never order. So the table is never full and needs no eviction. An entry
// is a packed uint64: the tick of the flow's last packet above laneBits bits of lane; zero for never.
//
// Flows is used by one goroutine.
type Flows struct {
	entries []uint64
	shift   int
	gap     int64 // in ticks
}

// NewFlows returns an empty table with 2^log2 entries, 0 < log2 <= 24.
func NewFlows(log2 int, gap time.Duration) *Flows {
	return &Flows{entries: make([]uint64, 1<<log2), shift: 32 - log2, gap: int64(gap) >> tickShift}
}

// Reset empties the table: lanes have another meaning from now on.
func (f *Flows) Reset() { clear(f.entries) }

// Choose returns the lane for n bytes of the flow with that hash at the instant now (nanoseconds, never decreasing):
// the flow's current lane if its last packet was less than the gap ago, else the least loaded lane of loads, the
// first among equals. The current lane need not be in loads: a flow stays on its lane until it pauses.
func (f *Flows) Choose(loads *Loads, hash uint32, now int64, n int) int {
	entry := &f.entries[hash>>f.shift]
	tick, epoch := now>>tickShift, epochOf(now)
	lane := int(*entry & laneMask)
	place := loads.index(lane)
	if f.paused(*entry, tick) {
		place = loads.least(epoch, f.shiftOf(*entry, tick, loads))
		lane = loads.lane(place)
	}
	*entry = uint64(tick)<<laneBits | uint64(lane)
	if place >= 0 {
		loads.add(place, epoch, n)
	}
	return loads.usable(lane)
}

// A flow that has paused for less than sparsePause takes the first lane whose load is less than 2^sparseShift bytes: a few packets now and then
// wake one lane of the receiver instead of all.
const (
	sparsePause = int64(4*time.Second) >> tickShift
	sparseShift = 12
)

// shiftOf returns the precision of loads for a flow that has paused. A new flow, which may become a large one, takes the least loaded lane.
func (f *Flows) shiftOf(entry uint64, tick int64, loads *Loads) int {
	if loads.lanes == nil || entry == 0 || tick-int64(entry>>laneBits) >= sparsePause {
		return 0
	}
	return sparseShift
}

// Note records that the flow uses lane ListenPort now, before loads exist for it, so that Choose does not reorder it
// later. It does not change an entry that another flow is using on another lane.
func (f *Flows) Note(hash uint32, now int64) {
	entry := &f.entries[hash>>f.shift]
	tick := now >> tickShift
	if *entry&laneMask == ListenPort || f.paused(*entry, tick) {
		*entry = uint64(tick)<<laneBits | ListenPort
	}
}

// Lane returns the lane of the flow's last packet, ListenPort if there was none.
func (f *Flows) Lane(hash uint32) int { return int(f.entries[hash>>f.shift] & laneMask) }

// Keep keeps the flow, if there was one, on its lane as if it had sent a packet now: older packets may still wait to be sent.
func (f *Flows) Keep(hash uint32, now int64) {
	if entry := &f.entries[hash>>f.shift]; *entry != 0 {
		*entry = uint64(now>>tickShift)<<laneBits | *entry&laneMask
	}
}

// paused reports whether a flow with that entry may take another lane.
func (f *Flows) paused(entry uint64, tick int64) bool {
	return entry == 0 || tick-int64(entry>>laneBits) >= f.gap
}
