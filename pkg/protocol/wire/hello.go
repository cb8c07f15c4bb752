// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Hello is the plaintext of the data message in which one ropewalk engine announces its capabilities to another,
// inside their session. Its first byte is zero, so a stock peer sees neither IPv4 nor IPv6 and drops it.
//
// An address that is unknown, because routing has yet to choose it, is the zero netip.Addr; its port is valid
// nevertheless. Zones are not transmitted.
type Hello struct {
	Gathers bool // the sender receives data messages from any of the receiver's source ports
	Heard   bool // an authenticated message from a port other than the receiver's listen port has arrived
	NoReply bool // the sender wants no hello in return
	Probes  bool // the sender answers probes (Probe)
	// PostQuantum is set if the sender takes part in post-quantum exchanges (KEMPart).
	PostQuantum bool

	Own  netip.AddrPort // the sender's endpoint as the sender sees it
	Peer netip.AddrPort // the receiver's endpoint as the sender sees it

	First, Last uint16 // the sender's range of source ports, inclusive; 0 and 0 for none
	// Lanes is not 0 if the sender puts sprayed flows in order. It is the number of its receive lanes: messages from port FirstLanePort + i
	// arrive at lane i modulo Lanes.
	Lanes, FirstLanePort uint16
	Plan                 []uint16 // the port plan: source ports that the receiver should use towards the sender, by lane; at most MaxHelloPorts, empty for no preference
}

// MaxHelloPorts is the largest number of ports in a plan.
const MaxHelloPorts = 64

// Sizes of a hello, in bytes, before it is padded.
const (
	MinHelloSize = 50
	MaxHelloSize = MinHelloSize + 2*MaxHelloPorts + helloLanesSize
)

// Errors of ParseHello.
var (
	ErrHelloMalformed = errors.New("malformed hello")          // not a hello, truncated, or an invalid field
	ErrHelloVersion   = errors.New("hello of another version") // a later version; the receiver ignores it
)

// Flags of a hello. Unknown flags are ignored.
const (
	helloGathers = 1 << iota
	helloHeard
	helloNoReply
	helloProbes
	helloOrders // the fields of Lanes follow the plan

	helloPostQuantum = 0x40
)

// Offsets in a hello after its header: length 2, first 2, last 2, own port 2, peer port 2, own address 16,
// peer address 16, number of planned ports 2, planned ports 2 each. Little-endian like the rest of the protocol, the
// ports included. length covers the whole hello; WireGuard's padding follows it. A later revision of this version
// appends fields after the plan.
const (
	helloLengthAt   = 6
	helloFirstAt    = 8
	helloLastAt     = 10
	helloOwnPortAt  = 12
	helloPeerPortAt = 14
	helloOwnAt      = 16
	helloPeerAt     = 32
	helloPlanLenAt  = 48
	helloPlanAt     = MinHelloSize
	helloLanesSize  = 4 // after the plan: lanes 2, port of the first lane 2
)

var helloHeader = header{helloMagic, 1, MinHelloSize, ErrHelloMalformed, ErrHelloVersion}

// AppendHello appends h, without padding, and returns the extended slice. It truncates the plan to MaxHelloPorts.
func AppendHello(b []byte, h *Hello) []byte {
	plan := h.Plan[:min(len(h.Plan), MaxHelloPorts)]
	own, peer := helloAddr(h.Own), helloAddr(h.Peer)
	length := MinHelloSize + 2*len(plan)
	if h.Lanes > 0 {
		length += helloLanesSize
	}
	le := binary.LittleEndian
	b = le.AppendUint16(helloHeader.append(b, h.flags()), uint16(length))
	b = le.AppendUint16(b, h.First)
	b = le.AppendUint16(b, h.Last)
	b = le.AppendUint16(b, h.Own.Port())
	b = le.AppendUint16(b, h.Peer.Port())
	b = append(b, own[:]...)
	b = append(b, peer[:]...)
	b = le.AppendUint16(b, uint16(len(plan)))
	for _, port := range plan {
		b = le.AppendUint16(b, port)
	}
	if h.Lanes > 0 {
		b = le.AppendUint16(le.AppendUint16(b, h.Lanes), h.FirstLanePort)
	}
	return b
}

func (h *Hello) flags() (flags byte) {
	if h.Gathers {
		flags |= helloGathers
	}
	if h.Heard {
		flags |= helloHeard
	}
	if h.NoReply {
		flags |= helloNoReply
	}
	if h.Probes {
		flags |= helloProbes
	}
	if h.PostQuantum {
		flags |= helloPostQuantum
	}
	if h.Lanes > 0 {
		flags |= helloOrders
	}
	return flags
}

// helloAddr returns an address as IPv6, an IPv4 one mapped (RFC 4291 section 2.5.5.2), and :: for none.
func helloAddr(ap netip.AddrPort) [16]byte {
	addr := ap.Addr()
	if !addr.IsValid() || addr.Unmap().IsUnspecified() {
		return [16]byte{}
	}
	return addr.As16()
}

// ParseHello parses a decrypted data message into h. It reuses the memory of h.Plan: with a capacity of MaxHelloPorts
// it allocates nothing. The error is ErrHelloMalformed or ErrHelloVersion; then h must not be used. Padding, unknown
// flags and the fields of a later revision are ignored. IPv4-mapped addresses are unmapped.
func ParseHello(plain []byte, h *Hello) error {
	body, err := helloBody(plain)
	if err != nil {
		return err
	}
	flags := body[flagsAt]
	*h = Hello{
		Gathers: flags&helloGathers != 0, Heard: flags&helloHeard != 0, NoReply: flags&helloNoReply != 0,
		Probes: flags&helloProbes != 0, PostQuantum: flags&helloPostQuantum != 0,
		Own:   helloEndpoint(body, helloOwnAt, helloOwnPortAt),
		Peer:  helloEndpoint(body, helloPeerAt, helloPeerPortAt),
		First: helloUint16(body, helloFirstAt), Last: helloUint16(body, helloLastAt),
		Plan: h.Plan[:0],
	}
	if h.First > h.Last || h.First == 0 && h.Last != 0 {
		return ErrHelloMalformed
	}
	for i := range int(helloUint16(body, helloPlanLenAt)) {
		port := helloUint16(body, helloPlanAt+2*i)
		if port == 0 {
			return ErrHelloMalformed
		}
		h.Plan = append(h.Plan, port)
	}
	if at := helloPlanAt + 2*len(h.Plan); flags&helloOrders != 0 && len(body) >= at+helloLanesSize {
		if h.Lanes = helloUint16(body, at); h.Lanes > 0 {
			h.FirstLanePort = helloUint16(body, at+2)
		}
	}
	return nil
}

// helloBody returns a hello of this version without its padding, and checks that its plan is complete.
func helloBody(plain []byte) ([]byte, error) {
	if err := helloHeader.check(plain); err != nil {
		return nil, err
	}
	length, planned := int(helloUint16(plain, helloLengthAt)), int(helloUint16(plain, helloPlanLenAt))
	if planned > MaxHelloPorts || length < MinHelloSize+2*planned || length > len(plain) {
		return nil, ErrHelloMalformed
	}
	return plain[:length], nil
}

func helloUint16(b []byte, at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }

func helloEndpoint(b []byte, addrAt, portAt int) netip.AddrPort {
	addr := netip.AddrFrom16([16]byte(b[addrAt:])).Unmap()
	if addr.IsUnspecified() {
		addr = netip.Addr{}
	}
	return netip.AddrPortFrom(addr, helloUint16(b, portAt))
}
