// SPDX-License-Identifier: Apache-2.0

package xsk

// owner says who has a frame.
type owner uint8

const (
	free   owner = iota // on the free list
	user                // with the caller
	kernel              // in a ring or in the device
)

// ledger says who has each frame of one half of a UMEM. Those frames lie together. It belongs to the half's goroutine.
type ledger struct {
	first  uint64 // the address of the first frame
	shift  uint   // log2 of the frame size
	owners []owner
}

// index returns which frame an address lies in. It is out of range for one of the other half, or of none.
func (l *ledger) index(addr uint64) uint64 { return (addr - l.first) >> l.shift }

// base is the address of the frame that addr lies in.
func (l *ledger) base(addr uint64) uint64 { return addr >> l.shift << l.shift }

// move makes the frame that addr lies in change hands, and reports false, changing nothing, when it was not where it
// was said to be.
func (l *ledger) move(addr uint64, from, to owner) bool {
	i := l.index(addr)
	if i >= uint64(len(l.owners)) || l.owners[i] != from {
		return false
	}
	l.owners[i] = to
	return true
}

// has reports whether the frame that addr lies in is with o.
func (l *ledger) has(addr uint64, o owner) bool {
	i := l.index(addr)
	return i < uint64(len(l.owners)) && l.owners[i] == o
}

// give hands every frame to o.
func (l *ledger) give(o owner) {
	for i := range l.owners {
		l.owners[i] = o
	}
}

// count returns how many frames are with o.
func (l *ledger) count(o owner) (n int) {
	for _, have := range l.owners {
		if have == o {
			n++
		}
	}
	return n
}
