// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

const (
	// arenaLen holds the messages of the trains of one batch: at least one full run and the small ones before it.
	arenaLen = 2 * 65536
	// cacheStagger keeps slots off each other's cache sets: without it all would start at the same offset of 64 KiB.
	cacheStagger = 5 * 64
)

// txBatch is what one read of the TUN brings, a train or a batch of small packets, and all that is needed to send it. It is what
// a lane seals, or has somebody seal, in one go.
type txBatch struct {
	slots     [][]byte // backing of bufs, with room for the message header in front
	bufs      [][]byte // what the TUN queue is read into
	sizes     []int
	arena     []byte // where trains are split
	arenaUsed int    // bytes of arena taken
	pending   pendingRuns

	runs  []underlay.Run
	meta  []*runMeta // of runs[i]
	parts [][]byte   // backing of all Run.Parts
	spans []sealSpan // all of runs
}

// sealSpan is runs that are sealed together: a train, or single packets of one session that stand together, whatever their
// runs, so that they fill the cipher's vector lanes.
type sealSpan struct {
	first, runs int
	messages    int
	counter     uint64 // of the first message
	sealed      bool
}

// newTxBatch returns a unit for up to n elements.
func newTxBatch(n int) *txBatch {
	u := &txBatch{
		sizes:   make([]int, n),
		arena:   make([]byte, arenaLen),
		pending: newPending(),
		runs:    make([]underlay.Run, 0, maxPending),
		meta:    make([]*runMeta, 0, maxPending),
		parts:   make([][]byte, 0, maxPending),
		spans:   make([]sealSpan, 0, maxPending),
	}
	u.slots, u.bufs = newSlots(n)
	return u
}

// newSlots cuts one allocation into n read buffers.
func newSlots(n int) (backing, bufs [][]byte) {
	size := headroom + tun.MaxElement + tailroom
	size += cacheStagger - size%64
	all := make([]byte, n*size)
	for i := range n {
		s := all[i*size : (i+1)*size : (i+1)*size]
		backing = append(backing, s)
		bufs = append(bufs, s[headroom:headroom+tun.MaxElement])
	}
	return backing, bufs
}

// empty says that there is nothing to send.
func (u *txBatch) empty() bool { return len(u.pending.runs) == 0 }

// bytes is the length of all messages.
func (u *txBatch) bytes() (n int) {
	for i := range u.pending.runs {
		n += u.pending.runs[i].bytes
	}
	return n
}

// spanAt returns the group that begins with run i.
func (u *txBatch) spanAt(i int) sealSpan {
	first := u.meta[i]
	g := sealSpan{first: i, runs: 1, messages: first.segments}
	if first.layout.Segments > 0 {
		return g
	}
	for _, m := range u.meta[i+1:] {
		if m.keys != first.keys || m.layout.Segments > 0 {
			break
		}
		g.runs++
		g.messages += m.segments
	}
	return g
}

// Run seals all groups in place; it implements crew.Job. Those whose session has been wiped stay as they are.
func (u *txBatch) Run(s *session.Scratch) {
	for i := range u.spans {
		g := &u.spans[i]
		m, parts := u.meta[g.first], u.runs[g.first].Parts
		if m.layout.Segments > 0 {
			g.sealed = m.keys.SealTrain(s, parts[0], m.layout, g.counter) > 0
		} else { // the parts of runs that stand together do so in u.parts
			g.sealed = m.keys.SealEach(s, parts[:g.messages], g.counter)
		}
	}
}

// reset forgets all.
func (u *txBatch) reset() {
	u.pending.reset()
	u.runs, u.meta, u.parts, u.spans, u.arenaUsed = u.runs[:0], u.meta[:0], u.parts[:0], u.spans[:0], 0
}
