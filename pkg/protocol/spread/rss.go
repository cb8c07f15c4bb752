// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Function is the hash function by which a NIC selects a packet's queue.
type Function uint8

const (
	Toeplitz Function = iota
	// OtherFunction cannot be computed from the driver's data: XOR, CRC32, or a function of the vendor.
	OtherFunction
)

// Transform is a NIC's transformation of a packet's fields before hashing (RXH_XFRM_* in Linux's ethtool.h, since 6.8).
type Transform uint8

const (
	Plain Transform = iota
	// SymmetricXOR replaces both by source xor destination.
	SymmetricXOR
	// SymmetricORXOR replaces the source by source or destination, and the destination by source xor destination.
	SymmetricORXOR
	// OtherTransform is an unknown transformation.
	OtherTransform
)

// Fields are the fields of a UDP packet that a NIC hashes.
type Fields uint8

const (
	// FourTuple is both addresses and both ports.
	FourTuple Fields = iota
	// AddressesOnly is both addresses: the whole tunnel arrives on one queue, whatever its ports.
	AddressesOnly
	// OtherFields is anything else.
	OtherFields
	// UnknownFields means that the driver does not report the fields.
	UnknownFields
)

// Reasons why the queue of a packet cannot be computed. RSS.Queue wraps one of them in every error, and Plan in every
// error about the NIC.
var (
	// ErrNotByPort means that source ports do not affect the queue, so spreading over ports has no effect.
	ErrNotByPort = errors.New("source ports do not select the queue")
	// ErrUnknownHash means that the queue of a packet cannot be computed: ports spread, but cannot be planned.
	ErrUnknownHash = errors.New("the NIC's hash cannot be computed")
)

// RSS is a NIC's receive-side scaling. The queue of a packet is Indirection[hash mod len], where
// the hash is over the packet's fields with the key. Its methods change nothing and may be called
// concurrently.
type RSS struct {
	Device      string // the name for error messages; may be empty
	Function    Function
	Key         []byte   // at least 16 bytes for IPv4, 40 for IPv6
	Indirection []uint32 // queues, not empty
	Transform   Transform
	UDP4, UDP6  Fields
	// Rules is the number of the NIC's flow rules. A rule may send packets to any queue, or to an RSS context with another table.
	Rules int
}

// MicrosoftKey is the key of the verification suite in Microsoft's specification of RSS, which is the default of some NICs.
func MicrosoftKey() []byte {
	return []byte{
		0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
		0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
	}
}

// EqualIndirection returns a NIC's default table: queues 0 to n-1 in turn, n > 0, in 128 entries or, for more queues,
// in the next power of two.
func EqualIndirection(n int) []uint32 {
	n = max(n, 1)
	size := 128
	for size < n {
		size *= 2
	}
	table := make([]uint32, size)
	for i := range table {
		table[i] = uint32(i % n)
	}
	return table
}

// Queue returns the queue on which a UDP packet from src to dst arrives, or an error if it cannot be computed. It unmaps
// IPv4-mapped IPv6 addresses.
func (r *RSS) Queue(src, dst netip.AddrPort) (int, error) {
	h, err := r.hasher(src.Addr(), dst.Addr())
	if err != nil {
		return 0, err
	}
	return int(r.Indirection[h.entry(src.Port(), dst.Port())]), nil
}

// Queues returns the queues in the table, in order.
func (r *RSS) Queues() []int {
	shares := r.queueShares()
	queues := make([]int, len(shares))
	for i, s := range shares {
		queues[i] = int(s.queue)
	}
	return queues
}

// ByPort returns nil if the source port of a UDP packet of that address's IP version affects its queue and the queue
// can be computed. Otherwise it returns ErrNotByPort, with the command that may change it, or ErrUnknownHash.
func (r *RSS) ByPort(addr netip.Addr) error {
	fields, version := r.UDP6, 6
	if addr.Unmap().Is4() {
		fields, version = r.UDP4, 4
	}
	switch {
	case fields == AddressesOnly:
		return fmt.Errorf("%s hashes UDP over IPv%d by its addresses alone (ethtool -N %s rx-flow-hash udp%d sdfn adds the ports): %w",
			r.name(), version, cmp.Or(r.Device, "DEV"), version, ErrNotByPort)
	case fields == UnknownFields:
		return fmt.Errorf("%s does not report which fields of UDP over IPv%d it hashes: %w", r.name(), version, ErrUnknownHash)
	case r.Rules > 0:
		return fmt.Errorf("%s has %d flow rules, which may override its hash (ethtool -n %s lists them): %w", r.name(), r.Rules, cmp.Or(r.Device, "DEV"), ErrUnknownHash)
	case fields != FourTuple:
		return fmt.Errorf("%s hashes UDP over IPv%d by other fields than addresses and ports: %w", r.name(), version, ErrUnknownHash)
	}
	return nil
}

func (r *RSS) name() string { return cmp.Or(r.Device, "the NIC") }

// hasher computes the table index for packets between two addresses.
type hasher struct {
	addresses uint32 // the addresses' part of the hash
	key       []byte // for the ports; nil if they are not hashed
	transform Transform
	entries   uint32
}

func (r *RSS) hasher(src, dst netip.Addr) (hasher, error) {
	src, dst = src.Unmap(), dst.Unmap()
	if err := r.check(src, dst); err != nil {
		return hasher{}, err
	}
	input := slices.Concat(src.AsSlice(), dst.AsSlice())
	r.Transform.apply(input)
	h := hasher{addresses: toeplitz(r.Key, input), transform: r.Transform, entries: uint32(len(r.Indirection))}
	if r.ByPort(src) == nil {
		h.key = r.Key[len(input):]
	}
	return h, nil
}

// portsLen is the length of both ports, in bytes.
const portsLen = 4

func (r *RSS) check(src, dst netip.Addr) error {
	if !src.IsValid() || src.BitLen() != dst.BitLen() {
		return fmt.Errorf("hashing %s to %s: want two addresses of one IP version", src, dst)
	}
	if len(r.Indirection) == 0 {
		return fmt.Errorf("%s has no indirection table: %w", r.name(), ErrUnknownHash)
	}
	if r.Function != Toeplitz || r.Transform >= OtherTransform {
		return fmt.Errorf("%s does not use the Toeplitz hash in a known way: %w", r.name(), ErrUnknownHash)
	}
	if need := 2*src.BitLen()/8 + portsLen + windowLen; len(r.Key) < need {
		return fmt.Errorf("%s has a key of %d bytes, want %d: %w", r.name(), len(r.Key), need, ErrUnknownHash)
	}
	if err := r.ByPort(src); errors.Is(err, ErrUnknownHash) {
		return err
	}
	return nil
}

// entry returns the index into the indirection table.
func (h *hasher) entry(src, dst uint16) uint32 {
	hash := h.addresses
	if h.key != nil {
		var ports [portsLen]byte
		binary.BigEndian.PutUint16(ports[:], src)
		binary.BigEndian.PutUint16(ports[2:], dst)
		h.transform.apply(ports[:])
		hash ^= toeplitz(h.key, ports[:])
	}
	return hash % h.entries
}

// apply transforms source and destination, the two halves of pair.
func (t Transform) apply(pair []byte) {
	src, dst := pair[:len(pair)/2], pair[len(pair)/2:]
	for i, s := range src {
		switch t {
		case SymmetricXOR:
			src[i], dst[i] = s^dst[i], s^dst[i]
		case SymmetricORXOR:
			src[i], dst[i] = s|dst[i], s^dst[i]
		}
	}
}
