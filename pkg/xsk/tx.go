// SPDX-License-Identifier: Apache-2.0

package xsk

import "sync/atomic"

// reapBatch is how many completions are taken from their ring at a time.
const reapBatch = 64

// tx is the transmitting half: frames go round from the free list to the caller, through the TX ring and the device to
// the completion ring, and back.
type tx struct {
	ring       producer[Desc]
	completion consumer[uint64]
	frames     ledger
	free       []uint64 // a stack of base addresses: the frame that was used last is still in the cache
	done       [reapBatch]uint64
	limit      uint64 // the end of what a packet may fill in a frame: FrameSize
	fragments  int    // how many frames one packet may have
	metadata   bool   // whether frames may carry requests for the device
	umem       []byte

	reserved, released, sent, completed, rejected, misowned, refused, wakes atomic.Uint64

	// dropped is refused for those who nudge, of whom there may be several.
	dropped atomic.Uint64
}

// start puts all frames on the free list, the lowest on top.
func (t *tx) start() {
	for i := range t.frames.owners {
		last := len(t.frames.owners) - 1
		t.free = append(t.free, t.frames.first+uint64(last-i)<<t.frames.shift)
	}
	t.frames.give(free)
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

// reap implements Socket.Reap.
func (t *tx) reap() (reaped int) {
	strays := 0
	for {
		n := t.completion.peek(t.done[:])
		t.completion.take(n)
		for _, addr := range t.done[:n] {
			if !t.frames.move(addr, kernel, free) {
				strays++
				continue
			}
			t.free = append(t.free, t.frames.base(addr))
			reaped++
		}
		if n < len(t.done) {
			break
		}
	}
	count(&t.completed, reaped)
	count(&t.misowned, strays)
	return reaped
}

// submit implements Socket.Submit.
func (t *tx) submit(descs []Desc) (taken int) {
	for len(descs) > 0 {
		n := packetLen(descs)
		if t.sound(descs[:n]) {
			t.push(descs[:n])
			taken += n
		} else {
			count(&t.rejected, n)
			t.release(descs[:n])
		}
		descs = descs[n:]
	}
	t.ring.publish()
	count(&t.sent, taken)
	return taken
}

// packetLen returns how many of the descriptors make up the first packet.
func packetLen(descs []Desc) int {
	for i, d := range descs {
		if !d.More() {
			return i + 1
		}
	}
	return len(descs)
}

func (t *tx) push(packet []Desc) {
	for _, d := range packet {
		t.frames.move(d.Addr, user, kernel)
		t.ring.push(d) // there is room: the ring has a place for every frame
	}
}

// sound reports whether the kernel will take a packet. What it does not take it skips without a completion, or, worse,
// leaves at the head of the ring for ever.
func (t *tx) sound(packet []Desc) bool {
	if len(packet) > t.fragments || packet[len(packet)-1].More() {
		return false
	}
	for i, d := range packet {
		if !t.soundFrame(d) || d.Options&optionMetadata != 0 && (i > 0 || !t.soundRequest(d)) {
			return false
		}
		for _, earlier := range packet[:i] {
			if t.frames.base(earlier.Addr) == t.frames.base(d.Addr) {
				return false
			}
		}
	}
	return true
}

func (t *tx) soundFrame(d Desc) bool {
	offset := d.Addr - t.frames.base(d.Addr)
	return t.frames.has(d.Addr, user) && d.Len > 0 && offset >= TxHeadroom && offset+uint64(d.Len) <= t.limit &&
		d.Options&^(optionContinued|optionMetadata) == 0
}

// release implements Socket.Release.
func (t *tx) release(descs []Desc) {
	strays := 0
	for _, d := range descs {
		if !t.frames.move(d.Addr, user, free) {
			strays++
			continue
		}
		t.free = append(t.free, t.frames.base(d.Addr))
	}
	count(&t.released, len(descs)-strays)
	count(&t.misowned, strays)
}
