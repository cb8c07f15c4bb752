// SPDX-License-Identifier: Apache-2.0

package device

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
	// senderBits is the size of a filter. At 100,000 new addresses per second it takes a twentieth of them for known ones.
	senderBits = 1 << 22
	// senderMemory is the number of intervals after which the filters of a device that was under load are released.
	senderMemory = 15
)

// recentSenders tells a sender that tries again from one whose address a flood has invented. It has a Bloom filter of addresses for each of
// the last intervals. Its memory is 1.5 MiB, while the device is under load and for a minute afterwards.
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

// senderFilter is a Bloom filter with two hashes.
type senderFilter [senderBits / 64]atomic.Uint64

// note remembers a message from addr, and reports whether there was one in the intervals before.
func (s *recentSenders) note(now int64, addr netip.Addr) (again bool) {
	w, hash := s.at(now/senderInterval), maphash.Comparable(s.seed, addr)
	for _, f := range w.filters[1:] {
		again = again || f.has(hash)
	}
	w.filters[0].add(hash)
	return again
}

// at returns the filters of an interval. While another lane turns to it, those of the interval before do.
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

// turn returns the filters of a later interval. The oldest one becomes the first, and others may still read it: they may take a sender for
// unknown.
func (w *senderWindow) turn(interval int64) *senderWindow {
	next := &senderWindow{interval: interval}
	if w == nil || interval-w.interval >= senderFilters {
		for i := range next.filters {
			next.filters[i] = new(senderFilter)
		}
		return next
	}
	next.filters = w.filters
	for ; w.interval+1 <= interval; interval-- {
		f := next.filters
		f[senderFilters-1].clear()
		next.filters = [senderFilters]*senderFilter{f[2], f[0], f[1]}
	}
	return next
}

// release frees the filters some time after the last message under load.
func (s *recentSenders) release(now int64) {
	if w := s.recent.Load(); w != nil && now/senderInterval-w.interval > senderMemory {
		s.recent.CompareAndSwap(w, nil)
	}
}

func (f *senderFilter) has(hash uint64) bool {
	return f.bit(uint32(hash)) && f.bit(uint32(hash>>32))
}

func (f *senderFilter) bit(n uint32) bool {
	n %= senderBits
	return f[n/64].Load()>>(n%64)&1 != 0
}

func (f *senderFilter) add(hash uint64) {
	for _, n := range [...]uint32{uint32(hash) % senderBits, uint32(hash>>32) % senderBits} {
		if mask := uint64(1) << (n % 64); f[n/64].Load()&mask == 0 {
			f[n/64].Or(mask)
		}
	}
}

func (f *senderFilter) clear() {
	for i := range f {
		f[i].Store(0)
	}
}
