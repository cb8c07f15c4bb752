// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/fqcodel"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	// A lane reads ahead until it has readAheadTrains trains: 4 MiB, 6 ms at 5 Gbit/s. The last batch may exceed that.
	readAheadTrains = 64
	// readAheadFlows is the number of buckets for their flows.
	readAheadFlows = 256
	// readAheadHold is the time in nanoseconds for which a lane reads ahead after it has read a sparse train: with bulk alone it would only
	// take the trains through a colder cache.
	readAheadHold = int64(250 * time.Millisecond)
	// sparseGap is the time in nanoseconds without a large train after which the small ones of a flow are sparse.
	sparseGap = int64(100 * time.Millisecond)
)

// trainReader reads the trains of one lane, and computes the hashes of their flows, in the order of the TUN queue. A TUN queue is a FIFO, in which a ping waits behind all bulk. So the reader moves what waits there to
// a fair queue (RFC 8290 without CoDel), from which sparse flows leave first. It drops and marks nothing. Its methods belong to the transmit
// goroutine.
type trainReader struct {
	lane      *lane
	fragments packet.Fragments
	queue     *fqcodel.Queue[readTrain] // nil until it is needed
	free      [][]byte                  // unused slots
	many      bool                      // the last reads were of small packets only, and used up their slots
	until     int64                     // the end of reading ahead
	large     [readAheadFlows]int64     // by bucket: when its last large train was read
}

// readTrain is one train of n bytes in a slot of its own.
type readTrain struct {
	slot []byte
	n    int
	hash uint32
}

// newReadQueue returns the queue of a trainReader. No train waits for the target time.
func newReadQueue() *fqcodel.Queue[readTrain] {
	return fqcodel.New(fqcodel.Config[readTrain]{
		Params: fqcodel.Params{Target: math.MaxInt64, Interval: rxInterval, MTU: rxMTU},
		Flows:  readAheadFlows, Quantum: rxFlowQuantum, Elements: readAheadTrains + txSlots, Bytes: (readAheadTrains + txSlots) * tun.MaxTrain,
		Signal: func(*readTrain) bool { return false },
	})
}

// waits reports whether trains were read ahead.
func (r *trainReader) waits() bool { return r.queue != nil && r.queue.Len() > 0 }

// read reads trains into b, with a large one as the last, as tun.Queue's Read does. It blocks until there is one.
func (r *trainReader) read(b *txBatch) (int, error) {
	if r.waits() {
		return r.readAhead(b, 0), nil
	}
	end := r.slots(b)
	n, err := r.lane.queue.Read(b.bufs[:end], b.sizes[:end])
	return r.next(b, n), err
}

// readOr is read that also returns when one of the given descriptors becomes writable.
func (r *trainReader) readOr(b *txBatch, writable []int32) (int, error) {
	if r.waits() {
		return r.readAhead(b, 0), nil
	}
	end := r.slots(b)
	n, err := r.lane.queue.ReadOr(b.bufs[:end], b.sizes[:end], writable)
	return r.next(b, n), err
}

// tryRead is read that does not block.
func (r *trainReader) tryRead(b *txBatch) int {
	if r.waits() {
		return r.readAhead(b, 0)
	}
	end := r.slots(b)
	return r.next(b, r.lane.queue.TryRead(b.bufs[:end], b.sizes[:end]))
}

// slots returns the number of slots of b for the next read.
func (r *trainReader) slots(b *txBatch) int {
	if r.many {
		return len(b.bufs)
	}
	return min(len(b.bufs), txTrains)
}

// next returns the number of trains in b to send next. The first n were just read, and no trains were read ahead before. If the last of them is
// not large, the TUN queue was empty.
func (r *trainReader) next(b *txBatch, n int) int {
	r.hash(b, 0, n)
	if n == 0 {
		return 0
	}
	if b.sizes[n-1] <= tun.BigTrain {
		r.many = r.many || n == r.slots(b)
		return n
	}
	r.many = false
	now := r.lane.engine.cfg.Clock()
	for i := range n {
		r.note(b.hashes[i], b.sizes[i], now)
	}
	if now >= r.until || n == len(b.bufs) {
		return n
	}
	more := r.lane.queue.TryRead(b.bufs[n:], b.sizes[n:])
	if more == 0 {
		return n
	}
	r.hash(b, n, n+more)
	return r.readAhead(b, n+more)
}

// hash computes the hashes of trains that were read into b. Those of fragments depend on the trains before.
func (r *trainReader) hash(b *txBatch, first, end int) {
	for i := first; i < end; i++ {
		b.hashes[i] = r.fragments.FlowHash(b.bufs[i][min(offload.VnetHdrLen, b.sizes[i]):b.sizes[i]])
	}
}

// note records a train of n bytes.
func (r *trainReader) note(hash uint32, n int, now int64) {
	at := &r.large[hash%readAheadFlows]
	switch {
	case n > tun.BigTrain:
		*at = now
	case now-*at >= sparseGap:
		r.until = now + readAheadHold
	}
}

// readAhead moves the first n trains of b to the queue, and those that wait in the TUN queue. Then it moves those to b that are sent next, and
// returns their number.
func (r *trainReader) readAhead(b *txBatch, n int) int {
	if r.queue == nil {
		r.queue = newReadQueue()
	}
	now := r.lane.engine.cfg.Clock()
	for {
		r.push(b, n, now)
		room := min(max(readAheadTrains-r.queue.Len(), 0), len(b.bufs))
		if n = r.lane.queue.TryRead(b.bufs[:room], b.sizes[:room]); n == 0 {
			return r.pop(b, now)
		}
		r.hash(b, 0, n)
	}
}

// push moves the first n trains of b to the queue.
func (r *trainReader) push(b *txBatch, n int, now int64) {
	for i := range n {
		r.note(b.hashes[i], b.sizes[i], now)
		r.queue.Push(b.hashes[i], readTrain{slot: b.slots[i], n: b.sizes[i], hash: b.hashes[i]}, max(b.sizes[i], 1), now)
		b.setSlot(i, r.slot())
	}
}

// pop moves trains from the queue to b until it has moved a large one, and returns their number.
func (r *trainReader) pop(b *txBatch, now int64) (n int) {
	for n < len(b.slots) {
		e, _, ok := r.queue.Pop(now)
		if !ok {
			break
		}
		r.free = append(r.free, b.slots[n])
		b.setSlot(n, e.slot)
		b.sizes[n], b.hashes[n] = e.n, e.hash
		n++
		if e.n > tun.BigTrain {
			break
		}
	}
	return n
}

// slot returns an unused slot.
func (r *trainReader) slot() []byte {
	if last := len(r.free) - 1; last >= 0 {
		s := r.free[last]
		r.free = r.free[:last]
		return s
	}
	r.lane.engine.memory.note()
	slots, _ := newSlots(1)
	return slots[0]
}
