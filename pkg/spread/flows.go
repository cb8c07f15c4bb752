// SPDX-License-Identifier: Apache-2.0

package spread

import "time"

// DefaultGap is how long a flow must have been silent before it may take another port: longer than what is behind two
// ports can differ (a flowlet gap: Kandula et al., "Dynamic Load Balancing Without Packet Reordering", 2007). Queues
// differ by milliseconds; a receiver whose cores are starved may leave one of them alone for far longer.
const DefaultGap = 500 * time.Millisecond

const (
	// tickShift makes ticks of nanoseconds: 1,024 ns.
	tickShift = 10
	laneBits  = 8
	laneMask  = 1<<laneBits - 1
)

// Canonical is the lane of Note: NewLoadsOf must not be given it.
const Canonical = 0

// Flows is a flowlet table, indexed by the upper bits of the flow hash (LetFlow, NSDI 2017): flows that share an entry
// share a lane, which costs balance and never order. So it is never full, and needs no eviction. An entry is one word:
// when the flow was last seen, in ticks, above laneBits bits of lane; zero for never.
//
// Flows is used by one goroutine.
type Flows struct {
	words []uint64
	shift int
	gap   int64 // in ticks
}

// NewFlows returns an empty table with 2^log2 entries, 0 < log2 <= 24.
func NewFlows(log2 int, gap time.Duration) *Flows {
	return &Flows{words: make([]uint64, 1<<log2), shift: 32 - log2, gap: int64(gap) >> tickShift}
}

// Choose returns the lane on which n bytes of the flow with that hash leave now (nanoseconds, never going back): the
// flow's present one if it was seen less than the gap ago, else the least loaded of loads, where of equals the first
// wins. The present one need not be among those that loads are kept for: a flow stays where it is until it pauses,
// whatever becomes of the lanes.
func (f *Flows) Choose(loads *Loads, hash uint32, now int64, n int) int {
	word := &f.words[hash>>f.shift]
	tick, epoch := now>>tickShift, epochOf(now)
	lane := int(*word & laneMask)
	place := loads.place(lane)
	if f.paused(*word, tick) {
		place = loads.least(epoch)
		lane = loads.lane(place)
	}
	*word = uint64(tick)<<laneBits | uint64(lane)
	if place >= 0 {
		loads.add(place, epoch, n)
	}
	return loads.usable(lane)
}

// Note says that the flow leaves on lane Canonical now, for loads that will be there later: Choose then does not let it
// overtake itself. An entry that another flow is using on another lane stays as it is.
func (f *Flows) Note(hash uint32, now int64) {
	word := &f.words[hash>>f.shift]
	tick := now >> tickShift
	if *word&laneMask == Canonical || f.paused(*word, tick) {
		*word = uint64(tick)<<laneBits | Canonical
	}
}

// paused tells whether a flow with that word may take another lane.
func (f *Flows) paused(word uint64, tick int64) bool {
	return word == 0 || tick-int64(word>>laneBits) >= f.gap
}
