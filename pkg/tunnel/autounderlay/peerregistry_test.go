// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

// ledger is a register without a kernel. It is used under known's lock alone: the race detector sees if not.
type ledger struct {
	indices map[uint32]bool
	sources map[netip.Addr]int
	room    int // for indices
}

func newLedger() *ledger {
	return &ledger{indices: map[uint32]bool{}, sources: map[netip.Addr]int{}, room: 1 << 20}
}

var errFull = errors.New("full")

func (l *ledger) AddIndex(i uint32) error {
	if len(l.indices) >= l.room && !l.indices[i] {
		return errFull
	}
	l.indices[i] = true
	return nil
}

func (l *ledger) RemoveIndex(i uint32) error {
	delete(l.indices, i)
	return nil
}

func (l *ledger) AddSource(a netip.Addr) error {
	l.sources[a]++
	return nil
}

func (l *ledger) RemoveSource(a netip.Addr) error {
	if l.sources[a]--; l.sources[a] <= 0 {
		delete(l.sources, a)
	}
	return nil
}

// same compares what a register knows with what is known.
func (k *peerRegistry) same(l *ledger) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Equal(l.sources, k.sources) && len(l.indices) == len(k.indices) &&
		!slices.ContainsFunc(slices.Collect(maps.Keys(k.indices)), func(i uint32) bool { return !l.indices[i] })
}

func addr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }

func TestARegisterLearnsWhatWasAndWhatComes(t *testing.T) {
	k := newPeerRegistry(func() {})
	k.AddIndex(1)
	k.AddIndex(1) // as a device may that has just got its port
	k.AddIndex(2)
	k.AddSource(addr(1))
	k.AddSource(addr(1))
	k.AddSource(addr(2))
	first := newLedger()
	k.setClassifier(first)
	if !k.same(first) || len(first.indices) != 2 || first.sources[addr(1)] != 2 {
		t.Fatalf("at first: %+v", first)
	}
	k.AddIndex(3)
	k.RemoveIndex(1)
	k.RemoveIndex(9)
	k.RemoveSource(addr(1))
	k.RemoveSource(addr(2))
	k.RemoveSource(addr(2)) // once too often
	k.RemoveSource(addr(9))
	k.AddSource(addr(3))
	if !k.same(first) || len(first.indices) != 2 || len(first.sources) != 2 {
		t.Fatalf("later: %+v", first)
	}
	k.setClassifier(nil)
	k.AddIndex(4)
	k.RemoveSource(addr(1))
	if first.indices[4] || first.sources[addr(1)] != 1 {
		t.Errorf("told after its end: %+v", first)
	}
	second := newLedger()
	k.setClassifier(second)
	if !k.same(second) || !second.indices[4] || second.sources[addr(1)] != 0 {
		t.Errorf("the next one: %+v", second)
	}
}

func TestWhereAnotherPeerIsChangesThings(t *testing.T) {
	changes := 0
	k := newPeerRegistry(func() { changes++ })
	for i, test := range []struct {
		do   func(netip.Addr)
		a    netip.Addr
		want int
	}{
		{k.AddSource, addr(1), 1},
		{k.AddSource, addr(1), 1},
		{k.AddSource, addr(2), 2},
		{k.RemoveSource, addr(1), 2},
		{k.RemoveSource, addr(1), 3},
		{k.RemoveSource, addr(1), 3},
		{func(netip.Addr) { k.SetGuarded() }, addr(0), 4},
	} {
		if test.do(test.a); changes != test.want {
			t.Errorf("step %d: %d changes, want %d", i, changes, test.want)
		}
	}
}

func TestPeersAreToldOfOnceAllAreKnown(t *testing.T) {
	k := newPeerRegistry(func() {})
	for _, n := range []byte{3, 1, 2} {
		k.AddSource(addr(n))
	}
	if ready, _, peers := k.state(2); ready || len(peers) != 0 {
		t.Errorf("before: %v, %v", ready, peers)
	}
	k.SetGuarded()
	if ready, check, peers := k.state(2); !ready || !check || !slices.Equal(peers, []netip.Addr{addr(1), addr(2)}) {
		t.Errorf("after: %v, %v, %v", ready, check, peers)
	}
}

func TestTooManyIndicesAreNotCheckedAnyMore(t *testing.T) {
	changes := 0
	k := newPeerRegistry(func() { changes++ })
	for i := range uint32(maxCheckedIndices) {
		k.AddIndex(i)
	}
	if _, check, _ := k.state(1); !check || changes != 0 {
		t.Fatalf("with room: checked %v, %d changes", check, changes)
	}
	k.AddIndex(maxCheckedIndices)
	k.AddIndex(maxCheckedIndices + 1)
	if _, check, _ := k.state(1); check || changes != 1 {
		t.Errorf("without: checked %v, %d changes", check, changes)
	}
	for i := range uint32(maxCheckedIndices) {
		k.RemoveIndex(i)
	}
	if _, check, _ := k.state(1); check {
		t.Error("checked again: some may be missing in the register")
	}
}

// TestNoRegisterMissesAnythingWhileAllChanges has peers come and go at several processors while registers take turns.
func TestNoRegisterMissesAnythingWhileAllChanges(t *testing.T) {
	k := newPeerRegistry(func() {})
	var users sync.WaitGroup
	for u := range uint32(4) {
		users.Go(func() {
			for i := range uint32(2000) {
				index, a := u<<16|i%50, addr(byte(i%7))
				k.AddIndex(index)
				k.AddSource(a)
				if i%3 != 0 {
					k.RemoveIndex(index)
				}
				if i%2 != 0 {
					k.RemoveSource(a)
				}
				k.state(3)
			}
		})
	}
	var last *ledger
	for range 200 {
		last = newLedger()
		k.setClassifier(nil)
		k.setClassifier(last)
	}
	users.Wait()
	if !k.same(last) {
		t.Errorf("%d indices and %d sources of %d and %d", len(last.indices), len(last.sources), len(k.indices), len(k.sources))
	}
}
