// SPDX-License-Identifier: Apache-2.0

package spread

import "time"

// DefaultGap is the pause after which a flow may take another port (a flowlet gap: Kandula et al., "Dynamic Load
// Balancing Without Packet Reordering", 2007). It must exceed the difference in delay between two ports. Queues
// differ by milliseconds; a receiver without free cores may delay one of them far longer.
const DefaultGap = 500 * time.Millisecond

const (
	// tickShift converts nanoseconds to ticks of 65 µs.
	tickShift = 16
	laneBits  = 8
	laneMask  = 1<<laneBits - 1
	peerBits  = 16
	tagBits   = 8
	tagMask   = 1<<tagBits - 1
	tickBits  = 64 - tagBits - peerBits - laneBits // 78 hours, then ticks begin anew
	tickMask  = 1<<tickBits - 1
	// tickSlack is the number of ticks by which an entry may be newer than the clock that it is compared with.
	tickSlack = 1 << 16
)

// ListenPort is the lane of Note. NewLoadsOf must not be called with it.
const ListenPort = 0

// Flow is an inner flow: the number of the peer to which it goes, never 0, and its hash.
type Flow struct {
	Peer uint16
	Hash uint32
}

// Flows is a flowlet table, indexed by the upper bits of the flow hash (LetFlow, NSDI 2017). An
// entry has the tag of its flow: the lower bits of its hash. Flows to one peer that share both
// share a lane, which costs balance but never order. So the table is never full and needs no
// eviction. An entry is live until its flow pauses. A flow that finds a live entry of another flow
// has no entry. Its lane is the lane of its slot, which the entry's index gives (Loads.slot). So a
// sender that keeps all entries alive leaves others the balance of a hash.
//
// Flows is used by one goroutine.
type Flows struct {
	entries []entry
	shift   int
	gap     int64 // in ticks
}

// entry is packed: the tick of the flow's last packet, its tag, its peer and its lane; zero for never.
type entry uint64

func newEntry(tick int64, flow Flow, lane int) entry {
	return entry(tick)<<(tagBits+peerBits+laneBits) | flow.owner()<<laneBits | entry(lane)
}

func (e entry) lane() int { return int(e & laneMask) }

// of reports whether the entry is the flow's.
func (e entry) of(flow Flow) bool { return e>>laneBits&(1<<(tagBits+peerBits)-1) == flow.owner() }

// owner is the part of an entry that names the flow.
func (f Flow) owner() entry { return entry(f.Hash&tagMask)<<peerBits | entry(f.Peer) }

// age returns how many ticks ago the flow sent its last packet; slightly less than 0 if it did with a newer clock.
func (e entry) age(tick int64) int64 {
	return int64(uint64(tick)-uint64(e>>(tagBits+peerBits+laneBits))+tickSlack)&tickMask - tickSlack
}

// NewFlows returns an empty table with 2^log2 entries, 0 < log2 <= 24.
func NewFlows(log2 int, gap time.Duration) *Flows {
	return &Flows{entries: make([]entry, 1<<log2), shift: 32 - log2, gap: int64(gap) >> tickShift}
}

// Reset empties the table: lanes have another meaning from now on.
func (f *Flows) Reset() { clear(f.entries) }

// Choose returns the lane for n bytes of a flow at the instant now (nanoseconds, never
// decreasing). The flow keeps its current lane if its last packet was less than the gap ago.
// Otherwise it gets the least loaded lane of loads, the first among equals. The current lane need
// not be in loads: a flow stays on its lane until it pauses.
func (f *Flows) Choose(loads *Loads, flow Flow, now int64, n int) int {
	e, tick := &f.entries[flow.Hash>>f.shift], now>>tickShift
	lane := e.lane()
	place := loads.index(lane)
	if e.of(flow) && e.age(tick) < f.gap {
		*e = newEntry(tick, flow, lane)
	} else {
		place = f.place(loads, e, flow, now)
		lane = loads.lane(place)
	}
	if place >= 0 {
		loads.add(place, epochOf(now), n)
	}
	return loads.usable(lane)
}

// place returns the place of the lane of a flow that has no live entry, and updates the entry
// unless that is another flow's. While an entry is another flow's, a flow has the lane of its
// slot. A flow that left from there less than a gap ago has not paused.
func (f *Flows) place(loads *Loads, e *entry, flow Flow, now int64) (place int) {
	tick := now >> tickShift
	if old := *e; old != 0 && !old.of(flow) && old.age(tick) < 2*f.gap {
		place = loads.slot(flow.Hash >> f.shift)
	} else {
		place = loads.least(epochOf(now), f.shiftOf(old, flow, tick, loads))
	}
	if f.paused(*e, tick) {
		*e = newEntry(tick, flow, loads.lane(place))
	}
	return place
}

// A flow that has paused for less than sparsePause takes the first lane whose load is less than
// 2^sparseShift bytes. So a few packets now and then wake one lane of the receiver instead of all.
const (
	sparsePause = int64(4*time.Second) >> tickShift
	sparseShift = 12
)

// shiftOf returns the precision of loads for a flow that has paused. A new flow, which may become a large one, takes the least loaded lane.
func (f *Flows) shiftOf(e entry, flow Flow, tick int64, loads *Loads) int {
	if loads.lanes == nil || !e.of(flow) || e.age(tick) >= sparsePause {
		return 0
	}
	return sparseShift
}

// Note records that the flow uses lane ListenPort now, before loads exist for its peer, so that
// Choose does not reorder it later. It does not change a live entry of another flow, or of a flow
// that has left from another lane.
func (f *Flows) Note(flow Flow, now int64) {
	e, tick := &f.entries[flow.Hash>>f.shift], now>>tickShift
	if e.of(flow) && e.lane() == ListenPort || f.paused(*e, tick) {
		*e = newEntry(tick, flow, ListenPort)
	}
}

// Lane returns the lane of the last packet of a flow, ListenPort if there was none. Without loads all leave from there.
func (f *Flows) Lane(loads *Loads, flow Flow, now int64) int {
	e := f.entries[flow.Hash>>f.shift]
	switch {
	case e.of(flow):
		return e.lane()
	case e == 0 || loads == nil || e.age(now>>tickShift) >= 2*f.gap:
		return ListenPort
	}
	return loads.lane(loads.slot(flow.Hash >> f.shift))
}

// Keep keeps the flow, if it has an entry, on its lane as if it had sent a packet now. Older
// packets may still wait to be sent.
func (f *Flows) Keep(flow Flow, now int64) {
	if e := &f.entries[flow.Hash>>f.shift]; e.of(flow) {
		*e = newEntry(now>>tickShift, flow, e.lane())
	}
}

// paused reports whether the flow of an entry may take another lane.
func (f *Flows) paused(e entry, tick int64) bool { return e == 0 || e.age(tick) >= f.gap }
