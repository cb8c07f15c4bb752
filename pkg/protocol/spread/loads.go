// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"math/bits"
	"sync/atomic"
)

const (
	// epochShift converts nanoseconds to epochs of 134 ms. Each epoch halves a load.
	epochShift = 27
	epochBits  = 24
	epochMask  = 1<<epochBits - 1
	loadBits   = 64 - epochBits
	loadMask   = 1<<loadBits - 1
)

func epochOf(now int64) uint64 { return uint64(now>>epochShift) & epochMask }

// Loads is the recent load of each lane towards one peer: bytes, halved with every epoch. A load is a packed uint64:
// the epoch of its last change above loadBits bits of bytes.
//
// Several goroutines may use it. A goroutine that changes a load while another does may lose the
// other's bytes. A load is an estimate, and an atomic addition would cost more than it is worth.
type Loads struct {
	loads   []load
	first   int
	lanes   []uint8              // the lane of each load; nil means its index
	indexes *[laneMask + 1]int16 // the load of each lane, -1 for none; nil means the lane modulo their number
	blocked uint64               // by index: lanes that the path does not admit
}

// load has its own cache line: neighbours belong to other lanes' goroutines.
type load struct {
	packed atomic.Uint64
	sent   atomic.Uint32 // messages, modulo 2^32
	wake   atomic.Uint32 // see WakeAt
	_      [48]byte
}

// NewLoads returns zero loads of lanes 0 to n-1, 0 < n <= MaxPorts. A flow whose entry was set
// with larger Loads uses its lane modulo n. Among equally loaded lanes, first modulo n comes
// first, then the lanes after it. So flows that begin together take neighbouring ports, which a
// linear hash, such as a NIC's, maps to different queues. Senders to one receiver should differ in
// first, otherwise their first flows would share a queue.
func NewLoads(n int, first uint32) *Loads {
	return &Loads{loads: make([]load, n), first: int(first % uint32(n))}
}

// NewLoadsOf returns zero loads of the given lanes, at least one and at most MaxPorts, none of them ListenPort. All
// Loads that share a Flows are made this way, so a lane has the same meaning in all of them.
func NewLoadsOf(lanes []uint8, first uint32) *Loads {
	l := NewLoads(len(lanes), first)
	l.lanes, l.indexes = lanes, new([laneMask + 1]int16)
	for i := range l.indexes {
		l.indexes[i] = -1
	}
	for i, lane := range lanes {
		l.indexes[lane] = int16(i)
	}
	return l
}

// Blocked returns a copy of l, with the same loads and counts. In the copy exactly the lanes are
// blocked for whose index blocked returns true.
func (l *Loads) Blocked(blocked func(index int) bool) *Loads {
	c := *l
	c.blocked = 0
	for i := range l.loads {
		if blocked(i) {
			c.blocked |= 1 << i
		}
	}
	return &c
}

// Blocks reports whether a lane is blocked. Choose also returns blocked lanes.
func (l *Loads) Blocks(lane int) bool {
	if l.blocked == 0 {
		return false
	}
	place := l.index(lane)
	return place >= 0 && l.blocked>>place&1 != 0
}

// SharesCounts reports whether one of l and o is a copy of the other.
func (l *Loads) SharesCounts(o *Loads) bool { return &l.loads[0] == &o.loads[0] }

// Len returns the number of lanes.
func (l *Loads) Len() int { return len(l.loads) }

// Bytes returns the load with index i, 0 <= i < Len(), at the instant now.
func (l *Loads) Bytes(i int, now int64) uint64 { return LoadBytes(l.loads[i].packed.Load(), now) }

// LoadBytes returns the bytes of a packed load at the instant now. The eBPF program stores loads in this form.
func LoadBytes(packed uint64, now int64) uint64 { return decayed(packed, epochOf(now)) }

func (l *Loads) lane(place int) int {
	if l.lanes == nil {
		return place
	}
	return int(l.lanes[place])
}

// index returns the index of a lane's load, negative for none.
func (l *Loads) index(lane int) int {
	if l.indexes == nil {
		return lane % len(l.loads)
	}
	return int(l.indexes[lane])
}

// usable returns the lane of a flow whose entry contains lane.
func (l *Loads) usable(lane int) int {
	if l.lanes == nil {
		return lane % len(l.loads)
	}
	return lane
}

// least returns the index of the least load, in units of 2^shift bytes. Among equals it is first,
// or the next after it.
func (l *Loads) least(epoch uint64, shift int) int {
	n := len(l.loads)
	best, least := l.first, uint64(loadMask+1)
	for i := range n {
		place := l.first + i
		if place >= n {
			place -= n
		}
		if b := decayed(l.loads[place].packed.Load(), epoch) >> shift; b < least {
			best, least = place, b
			if b == 0 {
				break
			}
		}
	}
	return best
}

// slot returns the index of the lane of flows without an entry, by the index that the entry would
// have. It is that slot, or the next after it that is not blocked. So the lane changes only if the
// slot's is blocked or open again.
func (l *Loads) slot(entry uint32) int {
	n := len(l.loads)
	own := int(entry) % n
	for i := range n {
		if place := (own + i) % n; l.blocked>>place&1 == 0 {
			return place
		}
	}
	return own
}

// Add adds n bytes to the load of a lane. It ignores lanes that have none.
func (l *Loads) Add(lane int, now int64, n int) {
	if place := l.index(lane); place >= 0 {
		l.add(place, epochOf(now), n)
	}
}

// CountSent counts n messages that have left from a lane. It reports, once, that the count of
// WakeAt is reached. It ignores lanes that have no load. Counts are exact, unlike loads, because
// they are compared with the receiver's counts.
func (l *Loads) CountSent(lane, n int) (wake bool) {
	place := l.index(lane)
	if place < 0 {
		return false
	}
	x := &l.loads[place]
	sent, at := x.sent.Add(uint32(n)), x.wake.Load()
	return at != 0 && int32(sent-at) >= 0 && x.wake.CompareAndSwap(at, 0)
}

// Sent returns the number of messages that have left from the lane with index i, modulo 2^32.
func (l *Loads) Sent(i int) uint32 { return l.loads[i].sent.Load() }

// WakeAt makes CountSent report that the lane with index i has sent so many messages, modulo 2^32; 0 for never. It reports whether it has
// done so already.
func (l *Loads) WakeAt(i int, sent uint32) (passed bool) {
	l.loads[i].wake.Store(sent)
	return sent != 0 && int32(l.loads[i].sent.Load()-sent) >= 0
}

func (l *Loads) add(place int, epoch uint64, n int) {
	w := &l.loads[place].packed
	bytes := decayed(w.Load(), epoch) + uint64(n)
	w.Store(epoch<<loadBits | min(bytes, loadMask))
}

// decayed returns the bytes of a packed load at an epoch.
func decayed(packed, epoch uint64) uint64 {
	age := (epoch - packed>>loadBits) & epochMask
	if age >= bits.UintSize {
		return 0
	}
	return packed & loadMask >> age
}
