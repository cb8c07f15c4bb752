// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"
)

func newRecentSenders() *recentSenders { return &recentSenders{seed: maphash.MakeSeed()} }

// sender returns address n.
func sender(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// TestSendersAreKnownWhenTheyRepeat has one sender that repeats its message after a time, from each phase of an interval.
func TestSendersAreKnownWhenTheyRepeat(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		known bool
	}{{0, false}, {5 * time.Second, true}, {5333 * time.Millisecond, true}, {13 * time.Second, false}, {time.Hour, false}} {
		s := newRecentSenders()
		for n := range uint32(40) {
			first := time.Hour + time.Duration(n)*30*time.Second + time.Duration(n)*100*time.Millisecond
			if s.note(int64(first), sender(n)) {
				t.Fatalf("sender %d is known at its first message", n)
			}
			if again := s.note(int64(first+c.after), sender(n)); again != c.known {
				t.Errorf("sender %d, %s after its first message: got known %v, want %v", n, c.after, again, c.known)
			}
		}
	}
}

// TestInventedSendersAreRarelyKnown has floods of random addresses. Those that are taken for known ones must leave cookies for senders that try
// again.
func TestInventedSendersAreRarelyKnown(t *testing.T) {
	for _, perSecond := range []int{50_000, 100_000, 200_000} {
		s, random, known := newRecentSenders(), rand.New(rand.NewPCG(1, 2)), 0
		for n := range 12 * perSecond {
			now := int64(time.Hour) + int64(n)*int64(time.Second)/int64(perSecond)
			if s.note(now, sender(random.Uint32())) && n >= 8*perSecond {
				known++
			}
		}
		if known /= 4; known > 4096 {
			t.Errorf("of %d invented addresses per second, %d are taken for known ones, and get all cookies", perSecond, known)
		}
	}
}

func TestFiltersAreReleasedAfterTheLoad(t *testing.T) {
	s, now := newRecentSenders(), int64(time.Hour)
	s.note(now, sender(1))
	if s.release(now + int64(10*time.Second)); s.recent.Load() == nil {
		t.Error("the filters are gone while a sender may try again")
	}
	if s.release(now + int64(2*time.Minute)); s.recent.Load() != nil {
		t.Error("the filters are kept")
	}
}

// TestLanesShareRecentSenders has lanes that turn to new intervals at the same time.
func TestLanesShareRecentSenders(t *testing.T) {
	s := newRecentSenders()
	var lanes sync.WaitGroup
	for lane := range uint32(4) {
		lanes.Go(func() {
			for n := range uint32(50) {
				s.note(int64(n)*senderInterval, sender(lane<<16|n))
			}
		})
	}
	lanes.Wait()
	if w := s.recent.Load(); w.interval != 49 {
		t.Errorf("got interval %d, want 49", w.interval)
	}
	if s.note(50*senderInterval, sender(1)); !s.note(51*senderInterval, sender(1)) {
		t.Error("a sender is not known after the lanes have turned to an interval at once")
	}
}
