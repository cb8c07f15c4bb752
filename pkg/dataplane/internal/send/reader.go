// SPDX-License-Identifier: Apache-2.0

package send

import (
	"math"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/fqcodel"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	// backlogTime is the time in nanoseconds after which a TUN queue that was not found empty has a backlog.
	backlogTime = int64(time.Millisecond)
	// readAheadTrains bounds the trains and packets that a lane has read ahead. Beyond it the flow with most bytes loses some.
	readAheadTrains = 4096
	// readAheadBytes bounds the memory of their buffers. Many lanes have a lower limit: all
	// together have txQueueTotal, as for transmit queues.
	readAheadBytes = 8 << 20
	// shedLen is the size in bytes of the reads that drop trains: more than a packet of a usual link.
	shedLen = 2 << 10
	// shedReads bounds the reads in a row that may drop, of which each takes up to a batch.
	shedReads = 32
	// readAheadFlows is the number of buckets for flows.
	readAheadFlows = 256
)

// singleParams are CoDel's parameters for single packets. They cost a lane several times as much
// per byte as trains. A standing backlog of them keeps it from sleeping, and all other threads
// wait for its CPU. A tenth of CoDel's defaults is some milliseconds of such packets, as the 500
// entries of the kernel's queue were.
var singleParams = fqcodel.Params{Target: time.Millisecond, Interval: 10 * time.Millisecond, MTU: lane.QueueParams.MTU}

// trainReader reads the trains of one lane, and computes those hashes of their flows that depend on the order of the TUN queue. A TUN queue is a FIFO, and
// bounds trains and single packets by number. So with a backlog the reader moves all that waits there to an FQ-CoDel queue. Without one,
// trains would only pass through a colder cache. Its methods belong to the transmit goroutine.
type trainReader struct {
	lane      *lane.Lane
	limit     int // of buffers, in bytes: beyond it trains are dropped, and small packets still read
	fragments packet.Fragments
	queue     *fqcodel.Queue[readTrain] // nil until it is needed
	buffers   lane.BufferSet            // of queue
	drop      func(train []byte)        // counts a train for which queue has no room
	short     [][]byte                  // of shortBufs
	many      bool                      // the last reads were of small packets only, and used up their slots
	emptied   int64                     // when the TUN queue was last found empty
}

// readTrain is a train of n bytes: a large one in a slot, a small one in a smaller buffer.
type readTrain struct {
	buffer    *lane.Buffer
	n         int
	hash      uint32
	congested bool
}

func (e *readTrain) train() []byte {
	if e.buffer.Class == lane.SlotClass {
		return e.buffer.Bytes[lane.Headroom : lane.Headroom+e.n]
	}
	return e.buffer.Bytes[:e.n]
}

// newReadQueue returns the queue of a trainReader. The lane signals congestion when it sends: it has not parsed the trains yet.
func (r *trainReader) newReadQueue() *fqcodel.Queue[readTrain] {
	return fqcodel.New(fqcodel.Config[readTrain]{
		Params: lane.QueueParams,
		Small:  &singleParams, SmallSize: tun.BigTrain,
		Flows: readAheadFlows, Quantum: lane.FlowQuantum, Elements: readAheadTrains, Bytes: math.MaxInt,
		Signal: func(e *readTrain) bool {
			e.congested = true
			return false
		},
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
	n, err := r.lane.Queue.Read(b.bufs[:end], b.sizes[:end])
	return r.next(b, n), err
}

// readOr is read that also returns when one of the given descriptors becomes writable.
func (r *trainReader) readOr(b *txBatch, writable []int32) (int, error) {
	if r.waits() {
		return r.readAhead(b, 0), nil
	}
	end := r.slots(b)
	n, err := r.lane.Queue.ReadOr(b.bufs[:end], b.sizes[:end], writable)
	return r.next(b, n), err
}

// tryRead is read that does not block.
func (r *trainReader) tryRead(b *txBatch) int {
	if r.waits() {
		return r.readAhead(b, 0)
	}
	end := r.slots(b)
	return r.next(b, r.lane.Queue.TryRead(b.bufs[:end], b.sizes[:end]))
}

// slots returns the number of slots of b for the next read.
func (r *trainReader) slots(b *txBatch) int {
	if r.many {
		b.grow()
		return len(b.bufs)
	}
	return min(len(b.bufs), txTrains)
}

// next returns the number of trains in b to send next. The first n were just read, and no trains were read ahead before.
func (r *trainReader) next(b *txBatch, n int) int {
	r.hash(b, n)
	if n == 0 {
		return 0
	}
	now := r.lane.Shared.Clock()
	switch {
	case b.sizes[n-1] > tun.BigTrain:
		r.many = false
	case n == r.slots(b):
		r.many = true
	default:
		r.emptied = now
	}
	if now-r.emptied < backlogTime {
		return n
	}
	return r.readAhead(b, n)
}

// hash computes the hashes of fragments among the first n trains of b, which were just read: they depend on the trains before.
func (r *trainReader) hash(b *txBatch, n int) {
	for i := range n {
		b.congested[i], b.hashes[i] = false, 0
		if ip := b.packet(i); packet.MayBeFragment(ip) {
			b.hashes[i] = r.fragments.FlowHash(ip)
		}
	}
}

// readAhead moves the first n trains of b to the queue, and all trains of the TUN queue. Then it
// moves the trains that are sent next to b, and returns their number.
func (r *trainReader) readAhead(b *txBatch, n int) int {
	if r.queue == nil {
		r.queue = r.newReadQueue()
	}
	now := r.lane.Shared.Clock()
	for sheds := 0; r.push(b, n, now) && sheds < shedReads; {
		bufs, full := b.bufs, r.buffers.Held() > r.limit
		if full {
			sheds++
			bufs = r.shortBufs(b)
		}
		if n = r.lane.Queue.TryRead(bufs, b.sizes); n == 0 {
			r.emptied = now
			break
		}
		r.hash(b, n)
		if full {
			n = r.shed(b, n)
		}
	}
	n = r.pop(b, now)
	r.buffers.Recycle()
	return n
}

// shortBufs returns the buffers of b, cut to shedLen. A read of a train into one of them takes it from the TUN queue without copying the rest.
func (r *trainReader) shortBufs(b *txBatch) [][]byte {
	r.short = r.short[:0]
	for _, buf := range b.bufs {
		r.short = append(r.short, buf[:shedLen])
	}
	return r.short
}

// shed drops each of the first n trains of b that a read into shortBufs cut, and returns the
// number of the others. If such trains waited in the TUN queue instead, packets of sparse flows
// would wait behind up to 64 KiB each.
func (r *trainReader) shed(b *txBatch, n int) (kept int) {
	for i := range n {
		if size := b.sizes[i]; size < shedLen {
			b.swapBuffers(kept, i)
			b.sizes[kept], b.hashes[kept] = size, b.hashes[i]
			kept++
			continue
		}
		length, _ := packet.Length(b.packet(i))
		r.drop(b.bufs[i][:min(offload.VnetHdrLen+max(length, shedLen-offload.VnetHdrLen), tun.MaxTrain)]) // its headers, for the count
	}
	return kept
}

// push moves the first n trains of b to the queue. It reports whether there was room for all. If not, the flow with most bytes has lost as many: a
// lane that read on would soon only read and drop.
func (r *trainReader) push(b *txBatch, n int, now int64) (ok bool) {
	ok = true
	for i := range n {
		for r.queue.Full() {
			e, _ := r.queue.PopFattest()
			r.drop(e.train())
			r.buffers.Release(e.buffer)
			ok = false
		}
		e := readTrain{n: b.sizes[i], hash: b.hashes[i]}
		if e.hash == 0 {
			e.hash = packet.FlowHash(b.packet(i))
		}
		if e.n > tun.BigTrain {
			e.buffer = b.buffers[i]
			b.setBuffer(i, r.buffers.Take(lane.SlotLen))
		} else {
			e.buffer = r.buffers.Take(e.n)
			copy(e.buffer.Bytes, b.bufs[i][:e.n])
		}
		r.queue.Push(e.hash, e, max(e.n, 1), now)
	}
	return ok
}

// pop moves trains from the queue to b until it has moved a large one, and returns their number.
func (r *trainReader) pop(b *txBatch, now int64) (n int) {
	for n < len(b.slots) {
		e, _, ok := r.queue.Pop(now)
		if !ok {
			break
		}
		if e.buffer.Class == lane.SlotClass {
			r.buffers.Release(b.buffers[n])
			b.setBuffer(n, e.buffer)
		} else {
			copy(b.bufs[n], e.train())
			r.buffers.Release(e.buffer)
		}
		b.sizes[n], b.hashes[n], b.congested[n] = e.n, e.hash, e.congested
		n++
		if e.n > tun.BigTrain {
			break
		}
	}
	return n
}
