// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"math/bits"

	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// maxLine is the most elements that may wait in a line: done has a bit for each.
const maxLine = 64

// line is the elements that a lane has received and not handled yet, in a ring: while some bulk is being opened, what
// arrives behind it can be looked at, and what is sparse can go first.
type line struct {
	in    []underlay.Datagrams // at most maxLine
	head  int                  // of the oldest element that waits
	count int                  // elements that wait, or were handled before an older one
	done  uint64               // which of these, the oldest in bit 0, were handled
}

// at returns the k-th oldest element.
func (l *line) at(k int) *underlay.Datagrams { return &l.in[(l.head+k)%len(l.in)] }

// room returns where the next elements are to be received; it is empty when there is none.
func (l *line) room() []underlay.Datagrams {
	if l.count == 0 {
		l.head = 0
	}
	from := l.head + l.count
	if from < len(l.in) {
		return l.in[from:]
	}
	return l.in[from-len(l.in) : l.head]
}

// retire forgets the oldest elements as far as they were handled.
func (l *line) retire() {
	n := bits.TrailingZeros64(^l.done)
	l.done >>= n
	l.head = (l.head + n) % len(l.in)
	l.count -= n
}

// sparse tells which elements may be handled before all others, as a mask like done: those of flows that have sent little,
// when others have sent bulk. A ping would otherwise wait until hundreds of somebody else's packets are opened, as in
// any queue without flows (RFC 8290, section 1.3). A flow is here what comes from one source; one with bulk stays in its
// place as a whole.
func (l *line) sparse() uint64 {
	bulk, little := uint64(0), uint64(0)
	for k := range l.count {
		switch {
		case l.done>>k&1 != 0:
		case l.at(k).N >= eager:
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
		switch l.compare(l.at(k), bulk) {
		case sameFlow:
			first &^= 1 << k
		case roaming:
			return 0
		}
	}
	return first
}

// relation is what an element has to do with others.
type relation int

const (
	otherFlow relation = iota
	sameFlow
	roaming // the same session from another address: where the peer is, the last message says
)

func (l *line) compare(d *underlay.Datagrams, others uint64) relation {
	for ; others != 0; others &= others - 1 {
		o := l.at(bits.TrailingZeros64(others))
		switch {
		case d.From.Dst == o.From.Dst:
			return sameFlow
		case d.From.Dst.Addr() != o.From.Dst.Addr() && beginning(d) == beginning(o):
			return roaming
		}
	}
	return otherFlow
}

// beginning is the first eight bytes of a message: its type and, of a data message, the receiver index.
func beginning(d *underlay.Datagrams) uint64 {
	if d.N < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(d.Buf)
}
