// SPDX-License-Identifier: Apache-2.0

package session

import "sync/atomic"

const (
	blockShift = 5 // a block is 32 counters: one bitmap
	blockBits  = 1 << blockShift
	blockMask  = blockBits - 1
	ringBlocks = 512
)

// WindowSize is how far a counter may lie behind the newest one and still be accepted. The window moves by whole blocks,
// so up to 31 counters more may be. Linux takes 8192; trains of one session that travel over several lanes and NIC
// queues drift apart by more than those of one, and the ring has the room.
const WindowSize = (ringBlocks - 1) * blockBits

// Window is the anti-replay filter of one session, shared by all lanes without a lock. The zero Window has seen nothing.
//
// Like the filter of RFC 6479 it is a ring of bitmaps that is never shifted. Unlike it, each ring word names the block
// that owns it: the upper half is the low 32 bits of the block number (counter>>5), the lower half the block's bitmap,
// and a word changes only as a whole, by compare-and-swap. That makes it safe to share:
//
//   - No counter is accepted twice. Within a block, a bit goes from 0 to 1 by one successful CAS, and only who made it
//     accepts. The bit is lost only when a later block takes the word over, and then the counter is behind the window.
//   - A word is only ever taken over by a later block. newest is advanced before any word is touched, so at every moment
//     each word's block is <= newest. claim loads the word, then newest, and goes on only if its own block b has
//     newest-b <= 511. Another block B in the same word differs from b by a multiple of 512, so B > b would mean
//     B >= b+512 > newest: impossible. Hence B < b, and no comparison of block numbers is needed, only equality.
//   - Equality compares 32 bits. Two blocks that agree in them and share a word are 2^32 blocks, 2^37 counters, apart. A
//     word that lay untouched for so long shows stale bits: the counter may be refused, never accepted twice. For the CAS
//     to confuse the two (ABA), 2^37 messages must be received between two instructions of one goroutine. In a session's
//     180 s that takes 763 million packets per second, or a peer that skips counters, which could as well just send its
//     message twice.
type Window struct {
	newest atomic.Uint64 // block of the newest counter; read by every claim, so on a cache line of its own
	_      [7]uint64
	// first are the words of the first blocks, which take none of the ring's: a session that is hardly used has no ring, of
	// 4 KiB.
	first [2]atomic.Uint64
	ring  atomic.Pointer[[ringBlocks]atomic.Uint64] // made with the first block behind those
}

// Accept reports whether counter is new, and marks it as seen. The caller must have authenticated the message, and
// must refuse counters from RejectAfterMessages on.
func (w *Window) Accept(counter uint64) bool {
	block, bit := split(counter)
	w.advance(block)
	return w.claim(block, bit)&bit == 0
}

// AcceptRun is Accept for the counters of one train: fresh[i] tells whether counters[i] is new. It touches each word of
// the ring once per run of counters in its block. The train's newest counter counts as received before all others, which
// differs from one Accept after the other only in trains that span more than WindowSize. fresh must be as long as
// counters; what goes beyond the shorter one is left alone.
func (w *Window) AcceptRun(counters []uint64, fresh []bool) {
	counters = counters[:min(len(counters), len(fresh))]
	if len(counters) == 0 {
		return
	}
	w.advance(newestOf(counters) >> blockShift)
	for len(counters) > 0 {
		block, want, n := sameBlock(counters)
		seen := w.claim(block, want)
		for i, c := range counters[:n] {
			fresh[i] = seen>>(c&blockMask)&1 == 0
		}
		counters, fresh = counters[n:], fresh[n:]
	}
}

func split(counter uint64) (block uint64, bit uint32) {
	return counter >> blockShift, 1 << (counter & blockMask)
}

func newestOf(counters []uint64) uint64 {
	newest := uint64(0)
	for _, c := range counters {
		newest = max(newest, c)
	}
	return newest
}

// sameBlock returns the block of the first counter, the bits of those that follow in the same block, and their number. A
// counter that repeats ends the run, so that it is judged against what the run has marked.
func sameBlock(counters []uint64) (block uint64, bits uint32, n int) {
	block, bits = split(counters[0])
	for n = 1; n < len(counters); n++ {
		b, bit := split(counters[n])
		if b != block || bits&bit != 0 {
			break
		}
		bits |= bit
	}
	return block, bits, n
}

func (w *Window) advance(block uint64) {
	for {
		newest := w.newest.Load()
		if block <= newest || w.newest.CompareAndSwap(newest, block) {
			return
		}
	}
}

// claim marks bits in block and returns those of the block that were marked before: all of them when the block lies
// behind the window. advance(block) must have come first.
func (w *Window) claim(block uint64, bits uint32) (seen uint32) {
	word := w.word(block)
	for {
		old := word.Load()
		if w.newest.Load()-block >= ringBlocks {
			return ^uint32(0)
		}
		seen = 0
		if uint32(old>>32) == uint32(block) {
			seen = uint32(old)
		}
		if seen&bits == bits || word.CompareAndSwap(old, block<<32|uint64(seen|bits)) {
			return seen
		}
	}
}

// word returns where a block's bitmap is.
func (w *Window) word(block uint64) *atomic.Uint64 {
	if block < uint64(len(w.first)) {
		return &w.first[block]
	}
	ring := w.ring.Load()
	if ring == nil {
		w.ring.CompareAndSwap(nil, new([ringBlocks]atomic.Uint64))
		ring = w.ring.Load()
	}
	return &ring[block%ringBlocks]
}

// empty tells that nothing has been accepted yet.
func (w *Window) empty() bool { return w.newest.Load() == 0 && w.first[0].Load() == 0 }
