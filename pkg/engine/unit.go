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
	// stagger keeps slots off each other's cache sets: without it all would start at the same offset of 64 KiB.
	stagger = 5 * 64
)

// unit is what one read of the TUN brings, a train or a batch of small packets, and all that is needed to send it. It is what
// a lane seals, or has somebody seal, in one go.
type unit struct {
	slots   [][]byte // backing of bufs, with room for the message header in front
	bufs    [][]byte // what the TUN queue is read into
	sizes   []int
	arena   []byte // where trains are split
	used    int    // bytes of arena taken
	pending pending

	runs   []underlay.Run
	meta   []*runMeta // of runs[i]
	parts  [][]byte   // backing of all Run.Parts
	groups []group    // all of runs
}

// group is runs that are sealed together: a train, or single packets of one session that stand together, whatever their
// runs, so that they fill the cipher's vector lanes.
type group struct {
	first, runs int
	messages    int
	counter     uint64 // of the first message
	sealed      bool
}

// newUnit returns a unit for up to n elements.
func newUnit(n int) *unit {
	u := &unit{
		sizes:   make([]int, n),
		arena:   make([]byte, arenaLen),
		pending: newPending(),
		runs:    make([]underlay.Run, 0, maxPending),
		meta:    make([]*runMeta, 0, maxPending),
		parts:   make([][]byte, 0, maxPending),
		groups:  make([]group, 0, maxPending),
	}
	u.slots, u.bufs = slots(n)
	return u
}

// slots cuts one allocation into n read buffers.
func slots(n int) (backing, bufs [][]byte) {
	size := slack + tun.MaxElement + tail
	size += stagger - size%64
	all := make([]byte, n*size)
	for i := range n {
		s := all[i*size : (i+1)*size : (i+1)*size]
		backing = append(backing, s)
		bufs = append(bufs, s[slack:slack+tun.MaxElement])
	}
	return backing, bufs
}

// empty says that there is nothing to send.
func (u *unit) empty() bool { return len(u.pending.runs) == 0 }

// bytes is the length of all messages.
func (u *unit) bytes() (n int) {
	for i := range u.pending.runs {
		n += u.pending.runs[i].bytes
	}
	return n
}

// together returns the group that begins with run i.
func (u *unit) together(i int) group {
	first := u.meta[i]
	g := group{first: i, runs: 1, messages: first.segments}
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

// Do seals all groups in place; it implements crew.Work. Those whose session has been wiped stay as they are.
func (u *unit) Do(s *session.Scratch) {
	for i := range u.groups {
		g := &u.groups[i]
		m, parts := u.meta[g.first], u.runs[g.first].Parts
		if m.layout.Segments > 0 {
			g.sealed = m.keys.SealTrain(s, parts[0], m.layout, g.counter) > 0
		} else { // the parts of runs that stand together do so in u.parts
			g.sealed = m.keys.SealEach(s, parts[:g.messages], g.counter)
		}
	}
}

// reset forgets all.
func (u *unit) reset() {
	u.pending.reset()
	u.runs, u.meta, u.parts, u.groups, u.used = u.runs[:0], u.meta[:0], u.parts[:0], u.groups[:0], 0
}
