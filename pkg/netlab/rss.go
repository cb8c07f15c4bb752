// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

const (
	// rssKeyLen is that of the NICs that have 40-byte keys: 32 bits more than the longest input, IPv6 with ports.
	rssKeyLen = 40
	// rssTableLen is that of many NICs' indirection tables.
	rssTableLen = 128
	rssInputLen = rssKeyLen - 4
)

// RSS is how a NIC chooses the receive queue of a packet: the Toeplitz hash of addresses and ports of TCP and UDP, of
// the addresses alone of fragments and all other IP packets, indexes the indirection table ("Receive Side Scaling" of
// Microsoft's NDIS documentation). What is not IP, or has VLAN tags inside, has hash 0.
type RSS struct {
	// Key is the Toeplitz key.
	Key [rssKeyLen]byte
	// Indirection holds the queue for each value of the hash's low 7 bits.
	Indirection [rssTableLen]uint32
}

// NewRSS returns what drivers set up when nobody asks: the key of Microsoft's verification suite, which many have as
// their default, and the queues in turn.
func NewRSS(queues int) *RSS {
	r := &RSS{Key: [rssKeyLen]byte{
		0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
		0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
	}}
	for i := range r.Indirection {
		r.Indirection[i] = uint32(i % max(queues, 1))
	}
	return r
}

// Hash returns the Toeplitz hash of a packet's addresses and ports.
func (r *RSS) Hash(src, dst netip.AddrPort) uint32 {
	input := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	input = binary.BigEndian.AppendUint16(input, src.Port())
	return r.hash(binary.BigEndian.AppendUint16(input, dst.Port()))
}

// Queue returns the receive queue of a TCP or UDP packet.
func (r *RSS) Queue(src, dst netip.AddrPort) int {
	return int(r.Indirection[r.Hash(src, dst)%rssTableLen])
}

// hash of at most rssInputLen bytes: the exclusive or of what each byte at its place contributes.
func (r *RSS) hash(input []byte) (hash uint32) {
	for i, b := range input {
		hash ^= r.share(i, b)
	}
	return hash
}

// share is what a byte contributes to the hash at a place: for each bit that is set, the 32 bits of the key that begin
// at that bit's place.
func (r *RSS) share(place int, b byte) (hash uint32) {
	key := uint64(binary.BigEndian.Uint32(r.Key[place:]))<<8 | uint64(r.Key[place+4])
	for bit := range 8 {
		if b&(0x80>>bit) != 0 {
			hash ^= uint32(key >> (8 - bit))
		}
	}
	return hash
}

// check returns an error for a table that names a queue which is none.
func (r *RSS) check(queues int) error {
	for i, q := range r.Indirection {
		if int(q) >= queues {
			return fmt.Errorf("entry %d of the indirection table is queue %d of %d", i, q, queues)
		}
	}
	return nil
}
