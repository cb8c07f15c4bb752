// SPDX-License-Identifier: Apache-2.0

package packet

const (
	// fragmentHeaderLen is the length of the IPv6 fragment header (RFC 8200, section 4.5).
	fragmentHeaderLen = 8
	// ipv6OffsetMask is the fragment offset in its third and fourth byte.
	ipv6OffsetMask = 0xfff8
	// fragmentSets is the number of sets in Fragments. The fragments of a datagram follow each other closely, so few datagrams
	// are incomplete at a time.
	fragmentSets = 128
	fragmentWays = 4
)

// Fragments gives all fragments of a datagram the hash of its flow. So fragmented datagrams of a
// flow are not reordered with its other packets. Only the first fragment has the ports. The table
// remembers its hash by the addresses and the identification. A fragment that comes before its
// first one is hashed without ports. The table is bounded: a datagram forgets the oldest of its
// set.
//
// The zero Fragments is ready for use. One goroutine owns it. bpf/include/fragments.h has the same table.
type Fragments struct{ sets [fragmentSets]fragmentSet }

// fragmentSet holds datagrams whose keys begin alike. An entry is the upper half of the key above the hash; 0 is unused.
type fragmentSet struct {
	entries [fragmentWays]uint64
	next    uint8 // the entry that is replaced next
}

// FlowHash returns the hash of the packet's flow: FlowHash, except in later fragments of a datagram. It changes f only if MayBeFragment.
func (f *Fragments) FlowHash(ip []byte) uint32 {
	hash := FlowHash(ip)
	if hash == 0 || !MayBeFragment(ip) {
		return hash
	}
	key, first, ok := fragmentKey(ip)
	if !ok {
		return hash
	}
	s := &f.sets[key%fragmentSets]
	if first {
		s.store(key, hash)
		return hash
	}
	return s.find(key, hash)
}

// MayBeFragment reports whether a packet is a fragment, or has an IPv6 extension header that a
// fragment header may follow. The result for bytes that are no packet is undefined.
func MayBeFragment(ip []byte) bool {
	switch {
	case len(ip) < IPv4HeaderLen:
		return false
	case ip[0]>>4 == 4:
		return IPv4(ip).IsFragment()
	}
	switch IPv6(ip).NextHeader() {
	case HopByHop, Routing, DestOptions, Fragment:
		return true
	}
	return false
}

// store remembers the hash of a datagram.
func (s *fragmentSet) store(key uint64, hash uint32) {
	s.entries[s.next%fragmentWays] = key>>32<<32 | uint64(hash)
	s.next++
}

// find returns the hash of a datagram, and otherwise if it is not known. The newest of equal entries holds.
func (s *fragmentSet) find(key uint64, otherwise uint32) uint32 {
	for i := range uint8(fragmentWays) {
		if e := s.entries[(s.next-1-i)%fragmentWays]; e>>32 == key>>32 {
			return uint32(e)
		}
	}
	return otherwise
}

// fragmentKey returns a hash of the fields by which the fragments of a datagram are recognised (RFC 791, section 3.2; RFC 8200, section
// 4.5), and whether the packet is the first fragment. ok is false if it is none.
func fragmentKey(ip []byte) (key uint64, first, ok bool) {
	if ip[0]>>4 == 4 {
		h := IPv4(ip)
		id := uint64(h.Protocol())<<48 | uint64(h.ID())
		return mix(mix(uint64(be32(ip[12:16]))<<16) + uint64(be32(ip[16:20]))<<16 + id), be16(ip[6:8])&ipv4OffsetMask == 0, h.IsFragment()
	}
	n, _ := Length(ip)
	t, ok := FindTransport(ip[:n])
	if !ok || !t.Fragment || n-t.Offset < fragmentHeaderLen {
		return 0, false, false
	}
	h := ip[t.Offset : t.Offset+fragmentHeaderLen]
	src, dst := mix(be64(ip[8:16]))+be64(ip[16:24]), mix(be64(ip[24:32]))+be64(ip[32:40])
	return mix(mix(src) + dst + uint64(be32(h[4:8]))), be16(h[2:4])&ipv6OffsetMask == 0, true
}
