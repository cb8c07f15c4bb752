// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// maxChecked is from how many receiver indices on they are not checked any more: there is room for some more when
// that is decided.
const maxChecked = programs.ClassifyIndices * 3 / 4

// classifier is what a classifier needs to know of the peers, whether there is one or not.
type classifier interface {
	AddIndex(index uint32) error
	RemoveIndex(index uint32) error
	AddSource(address netip.Addr) error
	RemoveSource(address netip.Addr) error
}

// peerRegistry is what the device has told of its peers. It implements underlay.Guard for the Port, but for SetGuarded.
type peerRegistry struct {
	mu        sync.Mutex
	ready     bool // nothing is missing
	unchecked bool // there were too many indices once
	indices   map[uint32]struct{}
	sources   map[netip.Addr]int
	register  classifier // nil for none
	changed   func()     // where peers are, or how many
}

func newPeerRegistry(changed func()) *peerRegistry {
	return &peerRegistry{indices: map[uint32]struct{}{}, sources: map[netip.Addr]int{}, changed: changed}
}

// AddIndex implements underlay.Guard.
func (k *peerRegistry) AddIndex(index uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.indices[index] = struct{}{}
	if k.register != nil {
		_ = k.register.AddIndex(index) // there is room up to maxChecked
	}
	if len(k.indices) > maxChecked && !k.unchecked {
		k.unchecked = true
		k.changed()
	}
}

// RemoveIndex implements underlay.Guard.
func (k *peerRegistry) RemoveIndex(index uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.indices, index)
	if k.register != nil {
		_ = k.register.RemoveIndex(index) // one that stays lets in what nobody can open
	}
}

// AddSource implements underlay.Guard.
func (k *peerRegistry) AddSource(address netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sources[address]++; k.sources[address] == 1 {
		k.changed()
	}
	if k.register != nil {
		_ = k.register.AddSource(address) // without room the peer counts as a stranger
	}
}

// RemoveSource implements underlay.Guard.
func (k *peerRegistry) RemoveSource(address netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sources[address] == 0 {
		return
	}
	if k.sources[address]--; k.sources[address] == 0 {
		delete(k.sources, address)
		k.changed()
	}
	if k.register != nil {
		_ = k.register.RemoveSource(address)
	}
}

// SetGuarded implements underlay.Guard.
func (k *peerRegistry) SetGuarded() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ready = true
	k.changed()
}

// setClassifier makes r, which nobody knows yet, know all that is known, and all that will be. nil stands for none.
func (k *peerRegistry) setClassifier(r classifier) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.register = r
	if r == nil {
		return
	}
	for index := range k.indices {
		_ = r.AddIndex(index)
	}
	for address, n := range k.sources {
		for range n {
			_ = r.AddSource(address)
		}
	}
}

// state returns whether all is known, whether indices may be checked, and, once all is known, up to most of the addresses where
// peers are, always the same ones.
func (k *peerRegistry) state(most int) (ready, check bool, peers []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ready && most > 0 {
		peers = slices.SortedFunc(maps.Keys(k.sources), netip.Addr.Compare)
	}
	return k.ready, !k.unchecked, peers[:min(len(peers), most)]
}
