// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// maxQueued is the largest number of datagrams in a queue: handled has a bit for each. It also bounds how many others can
// pass a datagram, since a handled one keeps its place until all older ones are handled.
const maxQueued = 64

// rxQueue is a ring of datagrams, single or coalesced, that a lane has received and not handled yet. While the lane opens
// bulk, later datagrams arrive in the queue, and those of sparse flows are handled first.
type rxQueue struct {
	ring       []underlay.Datagrams // at most maxQueued
	head       int                  // index of the oldest datagram
	count      int                  // datagrams that wait, or were handled before an older one
	handled    uint64               // mask of the handled ones, the oldest in bit 0
	considered uint64               // mask of those that submitAhead has decided on
}

// at returns the k-th oldest datagram.
func (l *rxQueue) at(k int) *underlay.Datagrams {
	i := l.head + k
	if i >= len(l.ring) {
		i -= len(l.ring)
	}
	return &l.ring[i]
}

// free returns the slots for the next datagrams; it is empty when there are none.
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

// retire removes the oldest datagrams up to the first that is not handled.
func (l *rxQueue) retire() {
	n := bits.TrailingZeros64(^l.handled)
	l.handled >>= n
	l.considered >>= n
	l.head = (l.head + n) % len(l.ring)
	l.count -= n
}

// sparse returns a mask, like handled, of the datagrams to handle first: those of sparse flows, if other flows have sent bulk.
// A ping would otherwise wait until hundreds of packets of other flows are opened, as in any queue without flow isolation
// (RFC 8290, section 1.3). A flow is everything from one source address and port. A flow with bulk keeps its order.
func (l *rxQueue) sparse() uint64 {
	bulk, small := uint64(0), uint64(0)
	for k := range l.count {
		switch {
		case l.handled>>k&1 != 0:
		case l.at(k).N >= bulkThreshold:
			bulk |= 1 << k
		default:
			small |= 1 << k
		}
	}
	if bulk == 0 {
		return 0
	}
	first := small
	for rest := small; rest != 0; rest &= rest - 1 {
		k := bits.TrailingZeros64(rest)
		if l.anyFrom(l.at(k).From.Dst, bulk) {
			first &^= 1 << k
		}
	}
	return first
}

// anyFrom reports whether one of the datagrams in a mask came from source.
func (l *rxQueue) anyFrom(source netip.AddrPort, mask uint64) bool {
	for ; mask != 0; mask &= mask - 1 {
		if l.at(bits.TrailingZeros64(mask)).From.Dst == source {
			return true
		}
	}
	return false
}
