// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"math/bits"
	"sync/atomic"
)

const (
	// epochShift makes epochs of nanoseconds: 134 ms. Each halves a load.
	epochShift = 27
	epochBits  = 24
	epochMask  = 1<<epochBits - 1
	loadBits   = 64 - epochBits
	loadMask   = 1<<loadBits - 1
)

func epochOf(now int64) uint64 { return uint64(now>>epochShift) & epochMask }

// Loads is what has lately left on each lane towards one peer: bytes, halved with every epoch. A load is one word: the
// epoch of its last change above loadBits bits of bytes.
//
// It may be used by several goroutines. One that changes a load while another does may lose the other's bytes: a load
// is an estimate, and an atomic addition would cost more than it is worth.
type Loads struct {
	words  []load
	first  int
	lanes  []uint8              // of each word; nil: its index
	places *[laneMask + 1]int16 // of each lane its word, -1 for none; nil: the lane modulo their number
}

// load has a cache line of its own: neighbours belong to other lanes' goroutines.
type load struct {
	word atomic.Uint64
	_    [56]byte
}

// NewLoads returns zero loads of lanes 0 to n-1, 0 < n <= MaxPorts. A flow that comes from another peer's Loads by way of
// a shared entry uses its lane modulo n. Of equally loaded lanes the one comes first that first, modulo n, says, then
// those behind it: flows that begin together take neighbouring ports, which under a linear hash, as a NIC's is, fall on
// different queues. Senders to one receiver should differ in first, or the first flow of each would meet the others'.
func NewLoads(n int, first uint32) *Loads {
	return &Loads{words: make([]load, n), first: int(first % uint32(n))}
}

// NewLoadsOf returns zero loads of the given lanes, at least one and at most MaxPorts, none of them Canonical. All Loads
// that share a Flows are made this way, and a lane means the same to all of them.
func NewLoadsOf(lanes []uint8, first uint32) *Loads {
	l := NewLoads(len(lanes), first)
	l.lanes, l.places = lanes, new([laneMask + 1]int16)
	for i := range l.places {
		l.places[i] = -1
	}
	for i, lane := range lanes {
		l.places[lane] = int16(i)
	}
	return l
}

// Len returns the number of lanes.
func (l *Loads) Len() int { return len(l.words) }

// Bytes returns the load at place i, 0 <= i < Len(), at that time.
func (l *Loads) Bytes(i int, now int64) uint64 { return LoadBytes(l.words[i].word.Load(), now) }

// LoadBytes returns the bytes of a load at that time, given its word: so the eBPF program keeps them.
func LoadBytes(word uint64, now int64) uint64 { return decayed(word, epochOf(now)) }

func (l *Loads) lane(place int) int {
	if l.lanes == nil {
		return place
	}
	return int(l.lanes[place])
}

// place returns which load is that of a lane, negative for none.
func (l *Loads) place(lane int) int {
	if l.places == nil {
		return lane % len(l.words)
	}
	return int(l.places[lane])
}

// usable returns the lane that a flow uses whose entry holds lane.
func (l *Loads) usable(lane int) int {
	if l.lanes == nil {
		return lane % len(l.words)
	}
	return lane
}

func (l *Loads) least(epoch uint64) int {
	n := len(l.words)
	best, least := l.first, uint64(loadMask+1)
	for i := range n {
		place := l.first + i
		if place >= n {
			place -= n
		}
		if b := decayed(l.words[place].word.Load(), epoch); b < least {
			best, least = place, b
			if b == 0 {
				break
			}
		}
	}
	return best
}

func (l *Loads) add(place int, epoch uint64, n int) {
	w := &l.words[place].word
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
