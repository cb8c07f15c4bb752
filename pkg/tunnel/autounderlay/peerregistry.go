// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// maxCheckedIndices is the number of receiver indices up to which the program checks them. The map has room for more,
// because the decision takes effect later.
const maxCheckedIndices = programs.ClassifyIndices * 3 / 4

// classifier is the part of a program that needs to know the peers.
type classifier interface {
	AddIndex(index uint32) error
	RemoveIndex(index uint32) error
	AddSource(endpoint config.Endpoint) error
	RemoveSource(endpoint config.Endpoint) error
}

// peerRegistry stores the peers' indices and endpoints that the device has reported. It implements underlay.Guard for
// the Port, but for SetGuarded.
type peerRegistry struct {
	mu             sync.Mutex
	complete       bool // the device has reported everything
	tooManyIndices bool // there were more than maxCheckedIndices
	indices        map[uint32]struct{}
	sources        map[config.Endpoint]int
	classifier     classifier // nil: none
	changed        func()     // called when peers' endpoints or the number of indices change
}

func newPeerRegistry(changed func()) *peerRegistry {
	return &peerRegistry{indices: map[uint32]struct{}{}, sources: map[config.Endpoint]int{}, changed: changed}
}

// AddIndex implements underlay.Guard.
func (reg *peerRegistry) AddIndex(index uint32) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.indices[index] = struct{}{}
	if reg.classifier != nil {
		_ = reg.classifier.AddIndex(index) // the map has room for maxCheckedIndices
	}
	if len(reg.indices) > maxCheckedIndices && !reg.tooManyIndices {
		reg.tooManyIndices = true
		reg.changed()
	}
}

// RemoveIndex implements underlay.Guard.
func (reg *peerRegistry) RemoveIndex(index uint32) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	delete(reg.indices, index)
	if reg.classifier != nil {
		_ = reg.classifier.RemoveIndex(index) // a remaining index only admits messages that no session can open
	}
}

// AddSource implements underlay.Guard.
func (reg *peerRegistry) AddSource(endpoint config.Endpoint) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.sources[endpoint]++; reg.sources[endpoint] == 1 {
		reg.changed()
	}
	if reg.classifier != nil {
		_ = reg.classifier.AddSource(endpoint) // if the map is full, the peer counts as unknown
	}
}

// RemoveSource implements underlay.Guard.
func (reg *peerRegistry) RemoveSource(endpoint config.Endpoint) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.sources[endpoint] == 0 {
		return
	}
	if reg.sources[endpoint]--; reg.sources[endpoint] == 0 {
		delete(reg.sources, endpoint)
		reg.changed()
	}
	if reg.classifier != nil {
		_ = reg.classifier.RemoveSource(endpoint)
	}
}

// SetGuarded implements underlay.Guard.
func (reg *peerRegistry) SetGuarded() {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.complete = true
	reg.changed()
}

// setClassifier gives all known peers to r, a new classifier, and from then on all changes. nil removes the classifier.
func (reg *peerRegistry) setClassifier(r classifier) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.classifier = r
	if r == nil {
		return
	}
	for index := range reg.indices {
		_ = r.AddIndex(index)
	}
	for endpoint, n := range reg.sources {
		for range n {
			_ = r.AddSource(endpoint)
		}
	}
}

// peerAddr is a peer's address. scope is the interface index of a link-local one, else 0.
type peerAddr struct {
	netip.Addr
	scope uint32
}

// state returns whether the device has reported everything, and whether indices may be checked. Once complete, it also
// returns at most limit of the peers' addresses, always the same ones.
func (reg *peerRegistry) state(limit int) (ready, check bool, peers []peerAddr) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if reg.complete && limit > 0 {
		for endpoint := range reg.sources {
			peers = append(peers, peerAddr{endpoint.AddrPort.Addr(), endpoint.Scope})
		}
		slices.SortFunc(peers, func(a, b peerAddr) int { return cmp.Or(a.Compare(b.Addr), cmp.Compare(a.scope, b.scope)) })
		peers = slices.Compact(peers)
	}
	return reg.complete, !reg.tooManyIndices, peers[:min(len(peers), limit)]
}
