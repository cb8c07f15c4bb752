// SPDX-License-Identifier: Apache-2.0

package packet

// EtherType is the protocol number in a link-layer header.
type EtherType uint16

// The ethertypes of IP packets (IEEE 802 numbers), for frames of AF_XDP.
const (
	EtherTypeIPv4 EtherType = 0x0800
	EtherTypeIPv6 EtherType = 0x86dd
)

// Protocol is an IPv4 protocol or IPv6 next header number (IANA protocol numbers).
type Protocol uint8

// The protocols that this package parses, and the IPv6 extension headers that it skips.
const (
	HopByHop             Protocol = 0
	ICMP                 Protocol = 1
	TCP                  Protocol = 6
	UDP                  Protocol = 17
	Routing              Protocol = 43
	Fragment             Protocol = 44
	AuthenticationHeader Protocol = 51
	ICMPv6               Protocol = 58
	NoNext               Protocol = 59
	DestOptions          Protocol = 60
	SCTP                 Protocol = 132
)

// hasPorts reports whether the protocol's header starts with a source and a destination port.
func (p Protocol) hasPorts() bool { return p == TCP || p == UDP || p == SCTP }
