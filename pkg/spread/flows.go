// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// DefaultGap is how long a flow must have been silent before it may take another port: longer than what is behind two
// ports can differ (a flowlet gap: Kandula et al., "Dynamic Load Balancing Without Packet Reordering", 2007). Queues
// differ by milliseconds; a receiver whose cores are starved may leave one of them alone for far longer.
const DefaultGap = 500 * time.Millisecond

const (
	// tickShift makes ticks of nanoseconds: 1,024 ns.
	tickShift = 10
	// epochShift makes epochs of nanoseconds: 134 ms. Each halves a load.
	epochShift = 27
	epochBits  = 24
	epochMask  = 1<<epochBits - 1
	loadBits   = 64 - epochBits
	loadMask   = 1<<loadBits - 1
	laneBits   = 8
	laneMask   = 1<<laneBits - 1
	// canonicalLane stands in an entry for the canonical port. The eBPF twin, which cannot see what it does not spread,
	// has no such entries.
	canonicalLane = laneMask
)

// Canonical is what Choose returns for a flow that has to stay on the canonical port for now.
const Canonical = -1

// Flows is a flowlet table, indexed by the upper bits of the flow hash (LetFlow, NSDI 2017): flows that share an entry
// share a port, which costs balance and never order. So it is never full, and needs no eviction. An entry is one word:
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

// Choose returns the lane, an index into the ports that loads are kept for, on which n bytes of the flow with that hash
// leave now (nanoseconds, never going back): the flow's present one if it was seen less than the gap ago, else the
// least loaded, where of equals the one wins that comes first. It is Canonical for a flow that was noted less than the
// gap ago.
func (f *Flows) Choose(loads *Loads, hash uint32, now int64, n int) int {
	word := &f.words[hash>>f.shift]
	tick, epoch := now>>tickShift, uint64(now>>epochShift)&epochMask
	lane := *word & laneMask
	switch {
	case *word == 0 || tick-int64(*word>>laneBits) >= f.gap:
		lane = uint64(loads.least(epoch))
	case lane == canonicalLane:
		f.Note(hash, now)
		return Canonical
	default:
		lane %= uint64(loads.Len())
	}
	*word = uint64(tick)<<laneBits | lane
	loads.add(int(lane), epoch, n)
	return int(lane)
}

// Note says that the flow leaves from the canonical port now, so that Choose does not let it overtake itself.
func (f *Flows) Note(hash uint32, now int64) {
	f.words[hash>>f.shift] = uint64(now>>tickShift)<<laneBits | canonicalLane
}

// Loads is what has lately left on each port towards one peer: bytes, halved with every epoch. A load is one word: the
// epoch of its last change above loadBits bits of bytes.
//
// It may be used by several goroutines. One that changes a load while another does may lose the other's bytes: a load
// is an estimate, and an atomic addition would cost more than it is worth.
type Loads struct {
	words []load
	first int
}

// load has a cache line of its own: neighbours belong to other lanes' goroutines.
type load struct {
	word atomic.Uint64
	_    [56]byte
}

// NewLoads returns zero loads of n ports, 0 <= n <= MaxPorts. Of equally loaded lanes the one comes first that first,
// modulo n, says, then those behind it: flows that begin together take neighbouring ports, which under a linear hash, as
// a NIC's is, fall on different queues. Senders to one receiver should differ in first, or the first flow of each would
// meet the others'.
func NewLoads(n int, first uint32) *Loads {
	return &Loads{words: make([]load, n), first: int(first % uint32(max(n, 1)))}
}

// Len returns the number of ports.
func (l *Loads) Len() int { return len(l.words) }

// Bytes returns the load of a lane at that time.
func (l *Loads) Bytes(lane int, now int64) uint64 {
	return LoadBytes(l.words[lane].word.Load(), now)
}

// LoadBytes returns the bytes of a load at that time, given its word: so the eBPF program keeps them.
func LoadBytes(word uint64, now int64) uint64 {
	return decayed(word, uint64(now>>epochShift)&epochMask)
}

func (l *Loads) least(epoch uint64) int {
	n := len(l.words)
	best, least := l.first, uint64(loadMask+1)
	for i := range n {
		lane := l.first + i
		if lane >= n {
			lane -= n
		}
		if b := decayed(l.words[lane].word.Load(), epoch); b < least {
			best, least = lane, b
			if b == 0 {
				break
			}
		}
	}
	return best
}

func (l *Loads) add(lane int, epoch uint64, n int) {
	w := &l.words[lane].word
	bytes := decayed(w.Load(), epoch) + uint64(n)
	w.Store(epoch<<loadBits | min(bytes, loadMask))
}

// decayed returns the bytes of a load's word at an epoch.
func decayed(word, epoch uint64) uint64 {
	age := (epoch - word>>loadBits) & epochMask
	if age >= bits.UintSize {
		return 0
	}
	return word & loadMask >> age
}
