// SPDX-License-Identifier: Apache-2.0

package heavyhitter

import "iter"

// HalfLife is the time in nanoseconds after which a weight counts half.
const HalfLife = int64(4e9)

// maxHalvings is the number of halvings after which every weight is 1.
const maxHalvings = 64

// none ends a chain of entries.
const none = -1

// Table holds the counters V of the heaviest keys K. It belongs to one goroutine at a time. Nothing but New allocates.
type Table[K comparable, V any] struct {
	entries []entry[K, V]
	heap    []int16 // all entries, a binary heap with the least weight first
	buckets []int16 // the first entry of each chain, by hash
	halved  int64   // when weights were last halved
}

// entry is one key with its counters.
type entry[K comparable, V any] struct {
	key    K
	value  V
	weight uint64
	hash   uint32
	next   int16 // in the same bucket
	place  int16 // in the heap
	used   bool
}

// New returns an empty table with 2^log2 entries, 0 < log2 <= 12.
func New[K comparable, V any](log2 int, now int64) *Table[K, V] {
	n := 1 << log2
	t := &Table[K, V]{entries: make([]entry[K, V], n), heap: make([]int16, n), buckets: make([]int16, 2*n), halved: now}
	for i := range t.entries {
		t.entries[i].place, t.heap[i] = int16(i), int16(i)
	}
	for i := range t.buckets {
		t.buckets[i] = none
	}
	return t
}

// Add adds weight to a key at the instant now (nanoseconds, never decreasing). It returns the key's counters for the caller to update, which
// are zero if the key has just taken an entry. The pointer is valid until the next call. Equal keys must have equal hashes.
func (t *Table[K, V]) Add(hash uint32, key K, weight uint64, now int64) *V {
	t.decay(now)
	at := t.find(hash, key)
	if at == none {
		at = t.replace(hash, key)
	}
	e := &t.entries[at]
	e.weight += weight
	t.sink(e.place)
	return &e.value
}

// All returns all keys with their counters, in no order.
func (t *Table[K, V]) All() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for i := range t.entries {
			if e := &t.entries[i]; e.used && !yield(e.key, &e.value) {
				return
			}
		}
	}
}

// decay halves all weights once per HalfLife, rounding up. The order of the heap stays.
func (t *Table[K, V]) decay(now int64) {
	periods := (now - t.halved) / HalfLife
	if periods <= 0 {
		return
	}
	t.halved += periods * HalfLife
	for range min(periods, maxHalvings) {
		for i := range t.entries {
			w := &t.entries[i].weight
			*w -= *w / 2
		}
	}
}

func (t *Table[K, V]) bucket(hash uint32) *int16 { return &t.buckets[hash&uint32(len(t.buckets)-1)] }

func (t *Table[K, V]) find(hash uint32, key K) int16 {
	for at := *t.bucket(hash); at != none; at = t.entries[at].next {
		if e := &t.entries[at]; e.hash == hash && e.key == key {
			return at
		}
	}
	return none
}

// replace gives the entry with the least weight to another key, which inherits the weight.
func (t *Table[K, V]) replace(hash uint32, key K) int16 {
	at := t.heap[0]
	e := &t.entries[at]
	if e.used {
		t.unlink(at)
	}
	head := t.bucket(hash)
	var zero V
	e.key, e.value, e.hash, e.next, e.used = key, zero, hash, *head, true
	*head = at
	return at
}

// unlink removes an entry from the chain of its bucket.
func (t *Table[K, V]) unlink(at int16) {
	link := t.bucket(t.entries[at].hash)
	for *link != at {
		link = &t.entries[*link].next
	}
	*link = t.entries[at].next
}

// sink restores the order of the heap after the weight at a place has grown.
func (t *Table[K, V]) sink(place int16) {
	for n := int16(len(t.heap)); ; {
		child := 2*place + 1
		if child >= n {
			return
		}
		if child+1 < n && t.weight(child+1) < t.weight(child) {
			child++
		}
		if t.weight(place) <= t.weight(child) {
			return
		}
		t.swap(place, child)
		place = child
	}
}

func (t *Table[K, V]) weight(place int16) uint64 { return t.entries[t.heap[place]].weight }

func (t *Table[K, V]) swap(a, b int16) {
	t.heap[a], t.heap[b] = t.heap[b], t.heap[a]
	t.entries[t.heap[a]].place, t.entries[t.heap[b]].place = a, b
}
