// SPDX-License-Identifier: Apache-2.0

package device

import (
	"hash/maphash"
	"net/netip"
	"sync"
)

// endpointSet holds the endpoints of peers. Lanes search it under load, for the address of each message. It keeps hashes with a secret
// seed, which take less memory than addresses and port.
type endpointSet struct {
	seed  maphash.Seed
	mu    sync.RWMutex
	peers map[uint64]int // the number of peers at an endpoint, by its hash
}

func (s *endpointSet) init() { s.seed, s.peers = maphash.MakeSeed(), map[uint64]int{} }

// replace replaces the endpoint of a peer. The zero AddrPort is none.
func (s *endpointSet) replace(old, current netip.AddrPort) {
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

func (s *endpointSet) has(endpoint netip.AddrPort) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.peers[maphash.Comparable(s.seed, endpoint)] > 0
}
