// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"hash/maphash"
	"net/netip"
	"sync"
)

// Endpoints holds the endpoints of peers. Lanes search it under load, for the address of each message. It keeps hashes with a secret
// seed, which take less memory than addresses and port.
type Endpoints struct {
	seed  maphash.Seed
	mu    sync.RWMutex
	peers map[uint64]int // the number of peers at an endpoint, by its hash
}

func (s *Endpoints) init() { s.seed, s.peers = maphash.MakeSeed(), map[uint64]int{} }

// Replace replaces the endpoint of a peer. The zero AddrPort is none.
func (s *Endpoints) Replace(old, current netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if current.IsValid() {
		s.peers[maphash.Comparable(s.seed, current)]++
	}
	if !old.IsValid() {
		return
	}
	key := maphash.Comparable(s.seed, old)
	if s.peers[key]--; s.peers[key] <= 0 {
		delete(s.peers, key)
	}
}

// Len returns the number of peers.
func (s *Endpoints) Len() (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, peers := range s.peers {
		n += peers
	}
	return n
}

func (s *Endpoints) has(endpoint netip.AddrPort) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.peers[maphash.Comparable(s.seed, endpoint)] > 0
}
