// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// maxCheckedIndices is the number of receiver indices up to which the program checks them. The map has room for more,
// because the decision takes effect later.
const maxCheckedIndices = programs.ClassifyIndices * 3 / 4

// classifier is the part of a program that needs to know the peers.
type classifier interface {
	AddIndex(index uint32) error
	RemoveIndex(index uint32) error
	AddSource(address netip.Addr) error
	RemoveSource(address netip.Addr) error
}

// peerRegistry stores the peers' indices and addresses that the device has reported. It implements underlay.Guard for
// the Port, but for SetGuarded.
type peerRegistry struct {
	mu             sync.Mutex
	complete       bool // the device has reported everything
	tooManyIndices bool // there were more than maxCheckedIndices
	indices        map[uint32]struct{}
	sources        map[netip.Addr]int
	classifier     classifier // nil: none
	changed        func()     // called when peers' addresses or the number of indices change
}

func newPeerRegistry(changed func()) *peerRegistry {
	return &peerRegistry{indices: map[uint32]struct{}{}, sources: map[netip.Addr]int{}, changed: changed}
}

// AddIndex implements underlay.Guard.
func (k *peerRegistry) AddIndex(index uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.indices[index] = struct{}{}
	if k.classifier != nil {
		_ = k.classifier.AddIndex(index) // the map has room for maxCheckedIndices
	}
	if len(k.indices) > maxCheckedIndices && !k.tooManyIndices {
		k.tooManyIndices = true
		k.changed()
	}
}

// RemoveIndex implements underlay.Guard.
func (k *peerRegistry) RemoveIndex(index uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.indices, index)
	if k.classifier != nil {
		_ = k.classifier.RemoveIndex(index) // a remaining index only admits messages that no session can open
	}
}

// AddSource implements underlay.Guard.
func (k *peerRegistry) AddSource(address netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sources[address]++; k.sources[address] == 1 {
		k.changed()
	}
	if k.classifier != nil {
		_ = k.classifier.AddSource(address) // if the map is full, the peer counts as unknown
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
	if k.classifier != nil {
		_ = k.classifier.RemoveSource(address)
	}
}

// SetGuarded implements underlay.Guard.
func (k *peerRegistry) SetGuarded() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.complete = true
	k.changed()
}

// setClassifier gives all known peers to r, a new classifier, and from then on all changes. nil removes the classifier.
func (k *peerRegistry) setClassifier(r classifier) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.classifier = r
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

// state returns whether the device has reported everything, and whether indices may be checked. Once complete, it also
// returns up to most of the peers' addresses, always the same ones.
func (k *peerRegistry) state(most int) (ready, check bool, peers []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.complete && most > 0 {
		peers = slices.SortedFunc(maps.Keys(k.sources), netip.Addr.Compare)
	}
	return k.complete, !k.tooManyIndices, peers[:min(len(peers), most)]
}
