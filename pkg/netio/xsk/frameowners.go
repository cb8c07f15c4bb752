// SPDX-License-Identifier: Apache-2.0

package xsk

// owner is the current owner of a frame.
type owner uint8

const (
	free   owner = iota // on the free list
	user                // the caller
	kernel              // in a ring or in the device
)

// frameOwners records the owner of each frame of one half of a UMEM. Those frames are contiguous. Only the half's
// goroutine uses it.
type frameOwners struct {
	first  uint64 // the address of the first frame
	shift  uint   // log2 of the frame size
	owners []owner
}

// index returns the index of the frame that contains an address. It is out of range for an address outside of the
// half.
func (o *frameOwners) index(addr uint64) uint64 { return (addr - o.first) >> o.shift }

// base returns the address of the frame that contains addr.
func (o *frameOwners) base(addr uint64) uint64 { return addr >> o.shift << o.shift }

// move changes the owner of the frame that contains addr. It returns false, and changes nothing, if the owner was not
// from.
func (o *frameOwners) move(addr uint64, from, to owner) bool {
	i := o.index(addr)
	if i >= uint64(len(o.owners)) || o.owners[i] != from {
		return false
	}
	o.owners[i] = to
	return true
}

// has reports whether the frame that contains addr has that owner.
func (o *frameOwners) has(addr uint64, who owner) bool {
	i := o.index(addr)
	return i < uint64(len(o.owners)) && o.owners[i] == who
}

// setAll sets the owner of every frame.
func (o *frameOwners) setAll(who owner) {
	for i := range o.owners {
		o.owners[i] = who
	}
}
