// SPDX-License-Identifier: Apache-2.0

package session

import "sync/atomic"

const (
	blockShift = 5 // a block is 32 counters: one bitmap
	blockBits  = 1 << blockShift
	blockMask  = blockBits - 1
	ringBlocks = 2048
	// tinyBlocks and smallBlocks are the numbers of blocks that have slots of their own, before the ring is needed.
	tinyBlocks  = 2
	smallBlocks = 512
)

// WindowSize is the distance behind the newest counter at which a counter is still accepted. The
// window moves by whole blocks, so up to 31 more may be. Linux has 8128 on 64-bit CPUs (a bitmap
// of 8192). Trains of one session that use several lanes and NIC queues drift apart by more than
// trains of one queue. Flows of which one waits in a receive queue drift apart as well.
const WindowSize = (ringBlocks - 1) * blockBits

// Window is the anti-replay filter of one session, shared by all lanes without a lock. The zero Window has accepted
// nothing.
//
// Like the filter of RFC 6479 it is a ring of bitmaps that is never shifted. In addition, each slot of the ring
// contains the block that owns it. The upper half is the low 32 bits of the block number (counter>>5), the lower half
// the block's bitmap. A slot changes only as a whole, by compare-and-swap. This makes it safe to share:
//
//   - No counter is accepted twice. Within a block, one successful CAS sets a bit, and only the goroutine that set it
//     accepts. The bit is lost only when a later block takes over the slot, and then the counter is behind the window.
//   - Only a later block ever takes over a slot. newest is advanced before any slot is touched, so at every moment each
//     slot's block is <= newest. claim loads the slot, then newest, and continues only if its own block b has
//     newest-b <= 2047. Another block B in the same slot differs from b by a multiple of 2048, so B > b would mean
//     B >= b+2048 > newest, which is impossible. Hence B < b, and comparing block numbers for equality suffices.
//   - Equality compares 32 bits. Two blocks that agree in them and share a slot are 2^32 blocks, 2^37 counters, apart. A
//     slot unused for that long contains stale bits: a counter may be rejected, never accepted twice. For the CAS to
//     confuse the two (ABA), 2^37 messages must arrive between two instructions of one goroutine. Within a session's 180 s
//     that takes 763 million packets per second, or a peer that skips counters, which could simply send its message twice.
type Window struct {
	newest atomic.Uint64 // block of the newest counter, on its own cache line because every claim reads it
	_      [7]uint64
	// The first blocks have slots outside of the ring, which has 16 KiB. A session that is hardly
	// used needs none of it, and one of up to 16,384 messages needs 4 KiB. Each array is allocated
	// with its first block.
	tiny  [tinyBlocks]atomic.Uint64
	small atomic.Pointer[[smallBlocks]atomic.Uint64]
	ring  atomic.Pointer[[ringBlocks]atomic.Uint64]
}

// Accept reports whether counter is new, and marks it as seen. The caller must have authenticated the message, and
// must reject counters from RejectAfterMessages on.
func (w *Window) Accept(counter uint64) bool {
	block, bit := split(counter)
	w.advance(block)
	return w.claim(block, bit)&bit == 0
}

// AcceptRun is Accept for the counters of one train: fresh[i] reports whether counters[i] is new. It touches each
// slot of the ring once per run of counters in its block. The train's newest counter is treated as received first,
// which differs from successive Accepts only in trains that span more than WindowSize. fresh must be as long as
// counters; excess entries of the longer one are ignored.
func (w *Window) AcceptRun(counters []uint64, fresh []bool) {
	counters = counters[:min(len(counters), len(fresh))]
	if len(counters) == 0 {
		return
	}
	w.advance(newestOf(counters) >> blockShift)
	for len(counters) > 0 {
		block, want, n := blockRun(counters)
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

// blockRun returns the block of the first counter, the bits of the counters that follow in the same block, and their
// number. A repeated counter ends the run, so that it is checked against the bits that the run has set.
func blockRun(counters []uint64) (block uint64, bits uint32, n int) {
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

// claim sets bits in block and returns the bits that were set before: all of them when the block is behind the
// window. advance(block) must have been called first.
func (w *Window) claim(block uint64, bits uint32) (seen uint32) {
	slot := w.slot(block)
	for {
		old := slot.Load()
		if w.newest.Load()-block >= ringBlocks {
			return ^uint32(0)
		}
		seen = 0
		if uint32(old>>32) == uint32(block) {
			seen = uint32(old)
		}
		if seen&bits == bits || slot.CompareAndSwap(old, block<<32|uint64(seen|bits)) {
			return seen
		}
	}
}

// slot returns the slot of a block.
func (w *Window) slot(block uint64) *atomic.Uint64 {
	switch {
	case block < tinyBlocks:
		return &w.tiny[block]
	case block < smallBlocks:
		return &allocated(&w.small)[block]
	}
	return &allocated(&w.ring)[block%ringBlocks]
}

// allocated returns the array that p points to. It allocates one if there is none.
func allocated[T any](p *atomic.Pointer[T]) *T {
	if p.Load() == nil {
		p.CompareAndSwap(nil, new(T))
	}
	return p.Load()
}

// empty reports whether nothing has been accepted yet.
func (w *Window) empty() bool { return w.newest.Load() == 0 && w.tiny[0].Load() == 0 }
