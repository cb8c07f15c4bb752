// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// fakeClassifier is a classifier without a kernel. It is used only under the registry's lock; the race detector checks
// this.
type fakeClassifier struct {
	indices map[uint32]bool
	sources map[config.Endpoint]int
	room    int // for indices
}

func newFakeClassifier() *fakeClassifier {
	return &fakeClassifier{indices: map[uint32]bool{}, sources: map[config.Endpoint]int{}, room: 1 << 20}
}

var errFull = errors.New("full")

func (l *fakeClassifier) AddIndex(i uint32) error {
	if len(l.indices) >= l.room && !l.indices[i] {
		return errFull
	}
	l.indices[i] = true
	return nil
}

func (l *fakeClassifier) RemoveIndex(i uint32) error {
	delete(l.indices, i)
	return nil
}

func (l *fakeClassifier) AddSource(a config.Endpoint) error {
	l.sources[a]++
	return nil
}

func (l *fakeClassifier) RemoveSource(a config.Endpoint) error {
	if l.sources[a]--; l.sources[a] <= 0 {
		delete(l.sources, a)
	}
	return nil
}

// matches reports whether a classifier has the registry's entries.
func (reg *peerRegistry) matches(l *fakeClassifier) bool {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return maps.Equal(l.sources, reg.sources) && len(l.indices) == len(reg.indices) &&
		!slices.ContainsFunc(slices.Collect(maps.Keys(reg.indices)), func(i uint32) bool { return !l.indices[i] })
}

func addr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }

func endpointAt(n byte) config.Endpoint {
	return config.Endpoint{AddrPort: netip.AddrPortFrom(addr(n), 51820)}
}

func TestNewClassifierGetsPastAndFuturePeers(t *testing.T) {
	k := newPeerRegistry(func() {})
	k.AddIndex(1)
	k.AddIndex(1) // as a device may do that has just got its port
	k.AddIndex(2)
	k.AddSource(endpointAt(1))
	k.AddSource(endpointAt(1))
	k.AddSource(endpointAt(2))
	first := newFakeClassifier()
	k.setClassifier(first)
	if !k.matches(first) || len(first.indices) != 2 || first.sources[endpointAt(1)] != 2 {
		t.Fatalf("initially: %+v", first)
	}
	k.AddIndex(3)
	k.RemoveIndex(1)
	k.RemoveIndex(9)
	k.RemoveSource(endpointAt(1))
	k.RemoveSource(endpointAt(2))
	k.RemoveSource(endpointAt(2)) // one removal too many
	k.RemoveSource(endpointAt(9))
	k.AddSource(endpointAt(3))
	if !k.matches(first) || len(first.indices) != 2 || len(first.sources) != 2 {
		t.Fatalf("later: %+v", first)
	}
	k.setClassifier(nil)
	k.AddIndex(4)
	k.RemoveSource(endpointAt(1))
	if first.indices[4] || first.sources[endpointAt(1)] != 1 {
		t.Errorf("the removed classifier got updates: %+v", first)
	}
	second := newFakeClassifier()
	k.setClassifier(second)
	if !k.matches(second) || !second.indices[4] || second.sources[endpointAt(1)] != 0 {
		t.Errorf("the next classifier: %+v", second)
	}
}

func TestNewPeerAddressTriggersChange(t *testing.T) {
	changes := 0
	k := newPeerRegistry(func() { changes++ })
	for i, test := range []struct {
		do   func(config.Endpoint)
		a    config.Endpoint
		want int
	}{
		{k.AddSource, endpointAt(1), 1},
		{k.AddSource, endpointAt(1), 1},
		{k.AddSource, endpointAt(2), 2},
		{k.RemoveSource, endpointAt(1), 2},
		{k.RemoveSource, endpointAt(1), 3},
		{k.RemoveSource, endpointAt(1), 3},
		{func(config.Endpoint) { k.SetGuarded() }, endpointAt(0), 4},
	} {
		if test.do(test.a); changes != test.want {
			t.Errorf("step %d: got %d changes, want %d", i, changes, test.want)
		}
	}
}

func TestPeersAreReturnedOnlyOnceGuarded(t *testing.T) {
	k := newPeerRegistry(func() {})
	for _, n := range []byte{3, 1, 2} {
		k.AddSource(endpointAt(n))
		k.AddSource(config.Endpoint{AddrPort: netip.AddrPortFrom(addr(n), 51821)}) // a second peer at the same address
	}
	if ready, _, peers := k.state(2); ready || len(peers) != 0 {
		t.Errorf("before: got %v, %v, want false, length 0", ready, peers)
	}
	k.SetGuarded()
	if ready, check, peers := k.state(2); !ready || !check || !slices.Equal(peers, []peerAddr{{addr(1), 0}, {addr(2), 0}}) {
		t.Errorf("after: got %v, %v, %v, want true, true, %v", ready, check, peers, []peerAddr{{addr(1), 0}, {addr(2), 0}})
	}
}

// TestScopesDistinguishEqualPeerAddresses has one address on two links: they are two peers, and moving from one link to the other is a change.
func TestScopesDistinguishEqualPeerAddresses(t *testing.T) {
	changes := 0
	k := newPeerRegistry(func() { changes++ })
	at := netip.MustParseAddrPort("[fe80::1]:51820")
	k.SetGuarded()
	for _, scope := range []uint32{8, 7} {
		k.AddSource(config.Endpoint{AddrPort: at, Scope: scope})
	}
	if _, _, peers := k.state(9); changes != 3 || !slices.Equal(peers, []peerAddr{{at.Addr(), 7}, {at.Addr(), 8}}) {
		t.Errorf("got %v, %d changes, want both, 3 changes", peers, changes)
	}
}

func TestTooManyIndicesDisableIndexCheck(t *testing.T) {
	changes := 0
	k := newPeerRegistry(func() { changes++ })
	for i := range uint32(maxCheckedIndices) {
		k.AddIndex(i)
	}
	if _, check, _ := k.state(1); !check || changes != 0 {
		t.Fatalf("with room: got indices checked %v, %d changes, want true, 0", check, changes)
	}
	k.AddIndex(maxCheckedIndices)
	k.AddIndex(maxCheckedIndices + 1)
	if _, check, _ := k.state(1); check || changes != 1 {
		t.Errorf("without: got checked %v, %d changes, want false, 1", check, changes)
	}
	for i := range uint32(maxCheckedIndices) {
		k.RemoveIndex(i)
	}
	if _, check, _ := k.state(1); check {
		t.Error("the index check is on again, although the classifier may miss indices")
	}
}

// TestClassifierIsCompleteUnderConcurrentChanges adds and removes peers on several goroutines while classifiers replace
// each other.
func TestClassifierIsCompleteUnderConcurrentChanges(t *testing.T) {
	k := newPeerRegistry(func() {})
	var users sync.WaitGroup
	for u := range uint32(4) {
		users.Go(func() {
			for i := range uint32(2000) {
				index, a := u<<16|i%50, endpointAt(byte(i%7))
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
	var last *fakeClassifier
	for range 200 {
		last = newFakeClassifier()
		k.setClassifier(nil)
		k.setClassifier(last)
	}
	users.Wait()
	if !k.matches(last) {
		t.Errorf("%d indices and %d sources of %d and %d", len(last.indices), len(last.sources), len(k.indices), len(k.sources))
	}
}
