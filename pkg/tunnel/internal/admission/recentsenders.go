// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// senderInterval is the time of one filter. WireGuard repeats an initiation after 5 s (paper §6.1), so the first one is in one of the two
	// filters before the present one.
	senderInterval = int64(4 * time.Second)
	senderFilters  = 3
	// senderBlocks is the number of blocks of a filter. Up to 200,000 new addresses per second, so few of them are taken for known ones that
	// these leave cookies for senders that try again.
	senderBlocks = 1 << 14
	// senderBlockBits is the size of a block, a cache line.
	senderBlockBits = 512
	// senderHashes is the number of bits that an address has in its block.
	senderHashes = 5
	// senderMemory is the number of intervals after which the filters of a device that was under load are released.
	senderMemory = 15
)

// recentSenders tells a sender that tries again from an address that a flood has invented. It has a
// Bloom filter of addresses for each of the last intervals. Its memory is 3 MiB, while the device
// is under load and until the first handshake message a minute or more afterwards.
type recentSenders struct {
	seed    maphash.Seed
	turning sync.Mutex
	recent  atomic.Pointer[senderWindow]
}

// senderWindow is the filters of an interval and of those before it. Lanes write to the first.
type senderWindow struct {
	interval int64
	filters  [senderFilters]*senderFilter
}

// senderFilter is a Bloom filter in blocks, of which an address uses one (Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom
// Filters", 2007).
type senderFilter [senderBlocks][senderBlockBits / 64]atomic.Uint64

// note remembers a message from addr, and reports whether there was one in the intervals before.
func (s *recentSenders) note(now int64, addr netip.Addr) (again bool) {
	w, hash := s.at(now/senderInterval), maphash.Comparable(s.seed, addr)
	for _, f := range w.filters[1:] {
		again = again || f.has(hash)
	}
	w.filters[0].add(hash)
	return again
}

// at returns the filters of an interval. While another lane turns to it, the filters of the
// interval before do.
func (s *recentSenders) at(interval int64) *senderWindow {
	w := s.recent.Load()
	if w != nil && (w.interval >= interval || !s.turning.TryLock()) {
		return w
	}
	if w == nil {
		s.turning.Lock()
	}
	defer s.turning.Unlock()
	if w = s.recent.Load(); w == nil || w.interval < interval {
		w = w.turn(interval)
		s.recent.Store(w)
	}
	return w
}

// turn returns the filters of a later interval. It clears none: other lanes may still use the oldest one.
func (w *senderWindow) turn(interval int64) *senderWindow {
	next := &senderWindow{interval: interval}
	for i := range next.filters {
		if number := interval - int64(i); w != nil && number <= w.interval && number > w.interval-senderFilters {
			next.filters[i] = w.filters[w.interval-number]
		} else {
			next.filters[i] = new(senderFilter)
		}
	}
	return next
}

// release frees the filters if the last message under load is a minute old. Later messages call it, so that no timer is needed.
func (s *recentSenders) release(now int64) {
	if w := s.recent.Load(); w != nil && now/senderInterval-w.interval > senderMemory {
		s.recent.CompareAndSwap(w, nil)
	}
}

func (f *senderFilter) has(hash uint64) bool {
	for block, i := f.block(hash), 0; i < senderHashes; i++ {
		if word, mask := senderBit(hash, i); block[word].Load()&mask == 0 {
			return false
		}
	}
	return true
}

func (f *senderFilter) add(hash uint64) {
	for block, i := f.block(hash), 0; i < senderHashes; i++ {
		if word, mask := senderBit(hash, i); block[word].Load()&mask == 0 {
			block[word].Or(mask)
		}
	}
}

// block returns the block of an address: the lowest 14 bits of the hash. Above them are 9 bits for each bit in the block.
func (f *senderFilter) block(hash uint64) *[senderBlockBits / 64]atomic.Uint64 {
	return &f[hash%senderBlocks]
}

// senderBit returns bit i of an address in its block: the word in which it is, and its mask there.
func senderBit(hash uint64, i int) (word int, mask uint64) {
	n := hash >> (14 + 9*i) % senderBlockBits
	return int(n / 64), 1 << (n % 64)
}
