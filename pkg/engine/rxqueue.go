// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// maxQueued is the most elements that may wait in a line: done has a bit for each. It also bounds how many others an element
// can be passed by: what was handled keeps its place until all older ones are.
const maxQueued = 64

// rxQueue is the elements that a lane has received and not handled yet, in a ring: while some bulk is being opened, what
// arrives behind it can be looked at, and what is sparse can go first.
type rxQueue struct {
	ring       []underlay.Datagrams // at most maxQueued
	head       int                  // of the oldest element that waits
	count      int                  // elements that wait, or were handled before an older one
	handled    uint64               // which of these, the oldest in bit 0, were handled
	considered uint64               // which were put on the lane's desk, or will not be
}

// at returns the k-th oldest element.
func (l *rxQueue) at(k int) *underlay.Datagrams {
	i := l.head + k
	if i >= len(l.ring) {
		i -= len(l.ring)
	}
	return &l.ring[i]
}

// free returns where the next elements are to be received; it is empty when there is none.
func (l *rxQueue) free() []underlay.Datagrams {
	if l.count == 0 {
		l.head = 0
	}
	from := l.head + l.count
	if from < len(l.ring) {
		return l.ring[from:]
	}
	return l.ring[from-len(l.ring) : l.head]
}

// retire forgets the oldest elements as far as they were handled.
func (l *rxQueue) retire() {
	n := bits.TrailingZeros64(^l.handled)
	l.handled >>= n
	l.considered >>= n
	l.head = (l.head + n) % len(l.ring)
	l.count -= n
}

// sparse tells which elements may be handled before all others, as a mask like done: those of flows that have sent little,
// when others have sent bulk. A ping would otherwise wait until hundreds of somebody else's packets are opened, as in
// any queue without flows (RFC 8290, section 1.3). A flow is here what comes from one source; one with bulk stays in its
// place as a whole.
func (l *rxQueue) sparse() uint64 {
	bulk, little := uint64(0), uint64(0)
	for k := range l.count {
		switch {
		case l.handled>>k&1 != 0:
		case l.at(k).N >= bulkThreshold:
			bulk |= 1 << k
		default:
			little |= 1 << k
		}
	}
	if bulk == 0 {
		return 0
	}
	first := little
	for rest := little; rest != 0; rest &= rest - 1 {
		k := bits.TrailingZeros64(rest)
		if l.anyFrom(l.at(k).From.Dst, bulk) {
			first &^= 1 << k
		}
	}
	return first
}

// anyFrom tells whether one of the elements came from a source.
func (l *rxQueue) anyFrom(source netip.AddrPort, elements uint64) bool {
	for ; elements != 0; elements &= elements - 1 {
		if l.at(bits.TrailingZeros64(elements)).From.Dst == source {
			return true
		}
	}
	return false
}
