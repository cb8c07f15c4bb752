// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	crand "crypto/rand"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/iotest"
)

func mustAdd[T any](tb testing.TB, t *Table[T], entry T) uint32 {
	tb.Helper()
	index, err := t.Add(entry)
	if err != nil {
		tb.Fatal(err)
	}
	return index
}

func TestTableAgreesWithAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	table, oracle := NewTable[int](crand.Reader), map[uint32]int{}
	var indices []uint32
	for step := range 50_000 {
		switch {
		case len(indices) == 0 || r.IntN(5) < 3:
			index := mustAdd(t, table, step)
			if _, used := oracle[index]; used {
				t.Fatalf("Add returned index %08x twice", index)
			}
			oracle[index] = step
			indices = append(indices, index)
		default:
			index := indices[r.IntN(len(indices))]
			_, used := oracle[index]
			if table.Remove(index) != used {
				t.Fatalf("Remove(%08x) = %v, want %v", index, !used, used)
			}
			delete(oracle, index)
		}
	}
	if table.Len() != len(oracle) {
		t.Errorf("got %d entries, want %d", table.Len(), len(oracle))
	}
	for _, index := range append(indices, 0, 1, ^uint32(0)) {
		got, ok := table.Lookup(index)
		if want, used := oracle[index]; ok != used || got != want {
			t.Errorf("Lookup(%08x) = %d, %v, want %d, %v", index, got, ok, want, used)
		}
	}
}

func TestTableHoldsHalfAMillionEntries(t *testing.T) {
	const entries = 500_000
	table := NewTable[uint32](rand.NewChaCha8([32]byte{}))
	indices := make([]uint32, entries)
	for i := range indices {
		indices[i] = mustAdd(t, table, uint32(i))
	}
	for i, index := range indices {
		if got, ok := table.Lookup(index); !ok || got != uint32(i) {
			t.Fatalf("Lookup(%08x) = %d, %v, want %d", index, got, ok, i)
		}
	}
}

func TestTableRejectsOtherIndexOfSameSlot(t *testing.T) {
	table := NewTable[string](crand.Reader)
	index := mustAdd(t, table, "here")
	for bit := range 32 {
		if _, ok := table.Lookup(index ^ 1<<bit); ok {
			t.Errorf("Lookup(%08x) found the entry of %08x", index^1<<bit, index)
		}
		if table.Remove(index ^ 1<<bit) {
			t.Errorf("Remove of %08x changed the entry of %08x", index^1<<bit, index)
		}
	}
}

func TestTableFindsFreeSlotWithConstantRandomness(t *testing.T) {
	table := NewTable[int](bytes.NewReader(bytes.Repeat([]byte{0xff}, 4*1000)))
	seen := map[uint32]bool{}
	for i := range 1000 {
		index := mustAdd(t, table, i)
		if seen[index] {
			t.Fatalf("Add returned index %08x twice", index)
		}
		seen[index] = true
	}
	if _, err := table.Add(0); !errors.Is(err, io.EOF) {
		t.Errorf("got error %v, want %v of the random source", err, io.EOF)
	}
}

func TestTableReportsRandomSourceError(t *testing.T) {
	broken := errors.New("no entropy")
	table := NewTable[int](iotest.ErrReader(broken))
	if _, err := table.Add(1); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v of the random source", err, broken)
	}
	if table.Len() != 0 {
		t.Errorf("got %d entries after a failed Add, want 0", table.Len())
	}
}

// Readers look up entries that stay while writers make the table grow, and shrink, around them.
func TestTableLookupWorksDuringGrowth(t *testing.T) {
	table := NewTable[int](crand.Reader)
	stay := make([]uint32, 20)
	for i := range stay {
		stay[i] = mustAdd(t, table, i)
	}
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 2 {
		writers.Go(func() { churn(t, table) })
		readers.Go(func() {
			for {
				for i, index := range stay {
					if got, ok := table.Lookup(index); !ok || got != i {
						t.Errorf("Lookup(%08x) = %d, %v, want %d", index, got, ok, i)
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	if table.Len() != len(stay) {
		t.Errorf("got %d entries left, want %d", table.Len(), len(stay))
	}
}

func churn(t *testing.T, table *Table[int]) {
	var mine []uint32
	for i := range 5000 {
		index, err := table.Add(1000 + i)
		if err != nil {
			t.Error(err)
			return
		}
		if got, ok := table.Lookup(index); !ok || got != 1000+i {
			t.Errorf("Lookup(%08x) of a new entry = %d, %v, want %d", index, got, ok, 1000+i)
		}
		mine = append(mine, index)
	}
	for _, index := range mine {
		if !table.Remove(index) {
			t.Errorf("Remove(%08x) = false, want true", index)
		}
	}
}

func TestTableLookupAllocatesNothing(t *testing.T) {
	table := NewTable[*Keypair](crand.Reader)
	k, _ := newPair(t, 0)
	index := mustAdd(t, table, k)
	if n := testing.AllocsPerRun(100, func() {
		if got, ok := table.Lookup(index); !ok || got != k {
			t.Errorf("Lookup(%08x) = %d, %v, want %d", index, got, ok, k)
		}
	}); n != 0 {
		t.Errorf("got %v allocations per lookup, want 0", n)
	}
}
