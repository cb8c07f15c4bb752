// SPDX-License-Identifier: Apache-2.0

package heavyhitter

import (
	"math/rand/v2"
	"testing"
)

const (
	log2    = 4
	entries = 1 << log2
)

// counters is the value of the tests' tables.
type counters struct{ bytes uint64 }

// hashOf maps few keys to one hash, so that chains have several entries.
func hashOf(key int) uint32 { return uint32(key % 7) }

// stream is a random stream of weights with exact counts.
type stream struct {
	table *Table[int, counters]
	bytes map[int]uint64  // exact, since the start
	heavy map[int]float64 // exact decayed weight
	total float64
	now   int64
}

func newStream() *stream {
	return &stream{table: New[int, counters](log2, 0), bytes: map[int]uint64{}, heavy: map[int]float64{}}
}

func (s *stream) add(key int, bytes uint64) {
	s.table.Add(hashOf(key), key, bytes, s.now).bytes += bytes
	s.bytes[key] += bytes
	s.heavy[key] += float64(bytes)
	s.total += float64(bytes)
}

func (s *stream) passHalfLife() {
	s.now += HalfLife
	s.total /= 2
	for key := range s.heavy {
		s.heavy[key] /= 2
	}
}

// check fails if a heavy key has no entry, a counter is too high, or the structure is inconsistent. Rounding adds less than one to a
// weight per half-life, and less than two in all.
func (s *stream) check(t *testing.T) {
	t.Helper()
	shown := map[int]uint64{}
	for key, c := range s.table.All() {
		if _, twice := shown[key]; twice {
			t.Fatalf("key %d has two entries", key)
		}
		if shown[key] = c.bytes; c.bytes > s.bytes[key] {
			t.Fatalf("key %d: got %d bytes, want at most %d", key, c.bytes, s.bytes[key])
		}
	}
	for key, weight := range s.heavy {
		if _, ok := shown[key]; !ok && weight > s.total/entries+2 {
			t.Fatalf("key %d with %.0f of %.0f bytes has no entry", key, weight, s.total)
		}
	}
	for place := range s.table.heap[1:] {
		if s.table.weight(int16(place)+1) < s.table.weight(int16(place)/2) {
			t.Fatalf("the heap is out of order at %d", place+1)
		}
	}
}

func TestHeavyKeysAlwaysHaveEntries(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := newStream()
		keys := rand.NewZipf(r, 1.05+r.Float64(), 1, uint64(entries*(1+r.IntN(20))))
		for i := range 5000 {
			s.add(int(keys.Uint64()), 1+r.Uint64N(65535))
			if seed%2 == 1 && i%500 == 499 {
				s.passHalfLife()
			}
			if i%100 == 0 {
				s.check(t)
			}
		}
		s.check(t)
	}
}

func TestFewKeysAreCountedExactly(t *testing.T) {
	s := newStream()
	for i := range 1000 {
		s.add(i%entries, uint64(i))
	}
	got := 0
	for key, c := range s.table.All() {
		if got++; c.bytes != s.bytes[key] {
			t.Errorf("key %d: got %d bytes, want %d", key, c.bytes, s.bytes[key])
		}
	}
	if got != entries {
		t.Errorf("got %d keys, want %d", got, entries)
	}
}

func TestEndedKeysMakeRoom(t *testing.T) {
	s := newStream()
	for key := range entries {
		s.add(key, 1<<40)
	}
	s.now += maxHalvings * HalfLife
	for key := range entries {
		s.table.Add(hashOf(100+key), 100+key, 1500, s.now)
	}
	for key := range s.table.All() {
		if key < 100 {
			t.Errorf("key %d, which ended long ago, has an entry", key)
		}
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	s, key := newStream(), 0
	if n := testing.AllocsPerRun(1000, func() {
		key++
		s.table.Add(hashOf(key), key, 1500, int64(key)*1e8)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
