// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

const (
	minTableSlots = 64
	maxTableSlots = 1 << 26
)

// ErrTableFull is returned by Table.Add when the table holds 2^25 entries.
var ErrTableFull = errors.New("index table is full")

// Table maps receiver indices to entries: sessions and handshakes in flight. Lookup takes no lock; changes lock each
// other out.
//
// It is an array whose length is a power of two; the low bits of an index select the slot. Indices are random, but
// chosen such that no two share a slot, so there are no chains. When the array doubles, indices that differ in the
// old low bits still differ in the new ones, so each entry just moves. The array is at most half full and never
// shrinks.
type Table[T any] struct {
	slots atomic.Pointer[[]atomic.Pointer[tableNode[T]]]

	mu   sync.Mutex
	rand io.Reader
	used int
}

type tableNode[T any] struct {
	index uint32
	entry T
}

// NewTable returns an empty table that draws its indices from rand, a cryptographic source: an index that cannot be
// guessed saves decrypting forgeries.
func NewTable[T any](rand io.Reader) *Table[T] {
	t := &Table[T]{rand: rand}
	slots := make([]atomic.Pointer[tableNode[T]], minTableSlots)
	t.slots.Store(&slots)
	return t
}

// Lookup returns the entry that Add or Replace has stored under index. It may run concurrently with all other methods.
func (t *Table[T]) Lookup(index uint32) (entry T, ok bool) {
	slots := *t.slots.Load()
	node := slots[index&uint32(len(slots)-1)].Load()
	if node == nil || node.index != index {
		return entry, false
	}
	return node.entry, true
}

// Add stores entry under a new index. An error is the random source's or ErrTableFull.
func (t *Table[T]) Add(entry T) (index uint32, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.makeRoom(); err != nil {
		return 0, err
	}
	var random [4]byte
	if _, err := io.ReadFull(t.rand, random[:]); err != nil {
		return 0, fmt.Errorf("drawing a receiver index: %w", err)
	}
	index = t.freeFrom(binary.LittleEndian.Uint32(random[:]))
	t.slot(index).Store(&tableNode[T]{index: index, entry: entry})
	t.used++
	return index, nil
}

// Remove frees index, and reports whether it was in use. A concurrent Lookup may still return the entry.
func (t *Table[T]) Remove(index uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := t.slot(index)
	if node := slot.Load(); node == nil || node.index != index {
		return false
	}
	slot.Store(nil)
	t.used--
	return true
}

// Len is the number of entries.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

func (t *Table[T]) slot(index uint32) *atomic.Pointer[tableNode[T]] {
	slots := *t.slots.Load()
	return &slots[index&uint32(len(slots)-1)]
}

// freeFrom returns index with its low bits advanced to the next free slot. makeRoom has made sure that there is one.
func (t *Table[T]) freeFrom(index uint32) uint32 {
	mask := uint32(len(*t.slots.Load()) - 1)
	for t.slot(index).Load() != nil {
		index = index&^mask | (index+1)&mask
	}
	return index
}

// makeRoom doubles the array when it is half full. Lookups use the old one until the new one is complete.
func (t *Table[T]) makeRoom() error {
	old := *t.slots.Load()
	if t.used < len(old)/2 {
		return nil
	}
	if len(old) == maxTableSlots {
		return ErrTableFull
	}
	slots := make([]atomic.Pointer[tableNode[T]], 2*len(old))
	for i := range old {
		if node := old[i].Load(); node != nil {
			slots[node.index&uint32(len(slots)-1)].Store(node)
		}
	}
	t.slots.Store(&slots)
	return nil
}
