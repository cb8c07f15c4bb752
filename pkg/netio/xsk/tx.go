// SPDX-License-Identifier: Apache-2.0

package xsk

import "sync/atomic"

// reapBatch is the number of completions read from the ring at a time.
const reapBatch = 64

// tx is the transmitting half. Frames circulate from the free list to the caller, through the TX ring and the device
// to the completion ring, and back.
type tx struct {
	ring       producer[Desc]
	completion consumer[uint64]
	frames     frameOwners
	free       []uint64 // a stack of base addresses: the most recently used frame is still in the cache
	reaped     [reapBatch]uint64
	limit      uint64 // the largest end offset of a packet in a frame: FrameSize
	metadata   bool   // whether frames may carry TX metadata
	umem       []byte

	reserved, released, sent, completed, rejected, frameOwnershipErrors, refused atomic.Uint64

	// refusedByKick counts, like refused, frames that the device dropped instead of sending
	// (EBUSY), as KickTx saw it, which several goroutines may call. refused has the frames that
	// WakeTx saw.
	refusedByKick atomic.Uint64
}

// start puts all frames on the free list, the lowest address on top.
func (t *tx) start() {
	for i := range t.frames.owners {
		last := len(t.frames.owners) - 1
		t.free = append(t.free, t.frames.first+uint64(last-i)<<t.frames.shift)
	}
	t.frames.setAll(free)
}

// reserve implements Socket.Reserve.
func (t *tx) reserve(into []Desc) int {
	if len(t.free) < len(into) {
		t.reap()
	}
	n := min(len(into), len(t.free))
	for i := range into[:n] {
		base := t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
		t.frames.move(base, free, user)
		into[i] = Desc{Addr: base + TxHeadroom, Len: uint32(t.limit - TxHeadroom)}
	}
	count(&t.reserved, n)
	return n
}

// reap frees the frames that were sent, and returns their number.
func (t *tx) reap() (reaped int) {
	invalid := 0
	for {
		n := t.completion.peek(t.reaped[:])
		t.completion.take(n)
		for _, addr := range t.reaped[:n] {
			if !t.frames.move(addr, kernel, free) {
				invalid++
				continue
			}
			t.free = append(t.free, t.frames.base(addr))
			reaped++
		}
		if n < len(t.reaped) {
			break
		}
	}
	count(&t.completed, reaped)
	count(&t.frameOwnershipErrors, invalid)
	return reaped
}

// submit implements Socket.Submit.
func (t *tx) submit(descs []Desc) (taken int) {
	for i, d := range descs {
		if t.isValid(d) {
			t.frames.move(d.Addr, user, kernel)
			t.ring.push(d) // cannot overflow: the ring has an entry for every frame
			taken++
		} else {
			count(&t.rejected, 1)
			t.release(descs[i : i+1])
		}
	}
	t.ring.publish()
	count(&t.sent, taken)
	return taken
}

// isValid reports whether the kernel accepts a packet. The kernel skips an invalid one without a completion, or
// leaves it at the head of the ring forever.
func (t *tx) isValid(d Desc) bool {
	return t.isValidFrame(d) && (d.Options&optionMetadata == 0 || t.isValidRequest(d))
}

func (t *tx) isValidFrame(d Desc) bool {
	offset := d.Addr - t.frames.base(d.Addr)
	return t.frames.has(d.Addr, user) && d.Len > 0 && offset >= TxHeadroom && offset+uint64(d.Len) <= t.limit &&
		d.Options&^optionMetadata == 0
}

// release implements Socket.Release.
func (t *tx) release(descs []Desc) {
	invalid := 0
	for _, d := range descs {
		if !t.frames.move(d.Addr, user, free) {
			invalid++
			continue
		}
		t.free = append(t.free, t.frames.base(d.Addr))
	}
	count(&t.released, len(descs)-invalid)
	count(&t.frameOwnershipErrors, invalid)
}
