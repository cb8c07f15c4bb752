// SPDX-License-Identifier: Apache-2.0

package send

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// arenaLen is the size of the arena, in bytes: at least one full run and the small ones before it.
const arenaLen = 2 * 65536

// txBatch is the result of one read of the TUN, a train or several small packets, with all that is needed to send it. It is
// one job for sealing, by the lane or a worker.
type txBatch struct {
	buffers   []*lane.Buffer // backing of slots
	slots     [][]byte       // backing of bufs, with room for the message header in front
	bufs      [][]byte       // buffers for TUN reads
	sizes     []int
	hashes    []uint32 // of the trains' flows; 0 if not computed yet
	congested []bool   // what waited for too long in the lane's queue
	arena     []byte   // buffer for split trains
	arenaUsed int      // bytes of arena taken
	pending   pendingRuns

	runs  []underlay.Run
	meta  []*runMeta // of runs[i]
	parts [][]byte   // backing of all Run.Parts
	spans []sealSpan // all of runs
}

// sealSpan is a span of runs that are sealed in one call: a train, or adjacent single packets of one session. Packets of
// several runs are sealed together to fill the cipher's vector lanes.
type sealSpan struct {
	first, runs int
	messages    int
	counter     uint64 // of the first message
	sealed      bool
}

// newTxBatch returns a batch for up to n trains or single packets. It has txTrains slots before grow.
func newTxBatch(n int) *txBatch {
	b := &txBatch{
		buffers:   make([]*lane.Buffer, 0, n),
		slots:     make([][]byte, 0, n),
		bufs:      make([][]byte, 0, n),
		sizes:     make([]int, n),
		hashes:    make([]uint32, n),
		congested: make([]bool, n),
		arena:     make([]byte, arenaLen),
		pending:   newPending(),
		runs:      make([]underlay.Run, 0, maxPending),
		meta:      make([]*runMeta, 0, maxPending),
		parts:     make([][]byte, 0, maxPending),
		spans:     make([]sealSpan, 0, maxPending),
	}
	b.addSlots(min(n, txTrains))
	return b
}

// grow gives the batch all its slots.
func (b *txBatch) grow() { b.addSlots(cap(b.slots)) }

func (b *txBatch) addSlots(n int) {
	for i := len(b.slots); i < n; i++ {
		b.buffers, b.slots, b.bufs = b.buffers[:i+1], b.slots[:i+1], b.bufs[:i+1]
		b.setBuffer(i, lane.NewBuffer(lane.SlotClass, i))
	}
}

// setBuffer replaces the buffer of slot i, which is of lane.SlotClass.
func (b *txBatch) setBuffer(i int, buf *lane.Buffer) {
	b.buffers[i], b.slots[i], b.bufs[i] = buf, buf.Bytes, buf.Bytes[lane.Headroom:lane.Headroom+tun.MaxTrain]
}

// packet returns the packet of train i.
func (b *txBatch) packet(i int) []byte {
	return b.bufs[i][min(offload.VnetHdrLen, b.sizes[i]):b.sizes[i]]
}

// swapBuffers swaps the buffers of two slots.
func (b *txBatch) swapBuffers(i, j int) {
	at := b.buffers[i]
	b.setBuffer(i, b.buffers[j])
	b.setBuffer(j, at)
}

// empty reports whether there is nothing to send.
func (b *txBatch) empty() bool { return len(b.pending.runs) == 0 }

// bytes returns the length of all messages.
func (b *txBatch) bytes() (n int) {
	for i := range b.pending.runs {
		n += b.pending.runs[i].bytes
	}
	return n
}

// spanAt returns the span that begins with run i.
func (b *txBatch) spanAt(i int) sealSpan {
	first := b.meta[i]
	span := sealSpan{first: i, runs: 1, messages: first.segments}
	if first.layout.Segments > 0 || first.streamed {
		return span
	}
	for _, m := range b.meta[i+1:] {
		if m.keys != first.keys || m.layout.Segments > 0 || m.streamed {
			break
		}
		span.runs++
		span.messages += m.segments
	}
	return span
}

// Run splits trains and seals all spans; it implements workpool.Job. It skips spans whose session
// has been wiped.
func (b *txBatch) Run(s *session.Scratch) {
	for i := range b.spans {
		span := &b.spans[i]
		m, parts := b.meta[span.first], b.runs[span.first].Parts
		if m.layout.Segments > 0 {
			m.train.Split(parts[0], m.segSize, wire.DataHeaderLen, m.skip, m.segments)
			span.sealed = m.keys.SealTrain(s, parts[0], m.layout, span.counter) > 0
		} else { // the parts of adjacent runs are adjacent in b.parts
			span.sealed = m.keys.SealEach(s, parts[:span.messages], span.counter)
		}
	}
}

// reset empties the batch.
func (b *txBatch) reset() {
	b.pending.reset()
	b.runs, b.meta, b.parts, b.spans, b.arenaUsed = b.runs[:0], b.meta[:0], b.parts[:0], b.spans[:0], 0
}
