// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
)

// Version is the IP version of a packet, its first nibble.
type Version uint8

// The IP versions.
const (
	Version4 Version = 4
	Version6 Version = 6
)

// Header sizes in bytes, without options or extension headers.
const (
	IPv4HeaderLen = 20 // RFC 791, section 3.1
	IPv6HeaderLen = 40 // RFC 8200, section 3
	TCPHeaderLen  = 20 // RFC 9293, section 3.1
	UDPHeaderLen  = 8  // RFC 768
)

// MaxLen is the largest value of the IPv4 total length, in bytes.
const MaxLen = 65535

// VersionOf returns the version in the first nibble of ip; 0 when ip is empty.
func VersionOf(ip []byte) Version {
	if len(ip) == 0 {
		return 0
	}
	return Version(ip[0] >> 4)
}

// Length returns the packet's length in bytes by its IP header: the IPv4 total length, or 40 plus the IPv6 payload
// length. ok is set only if the version is 4 or 6, the header is complete, and header <= n <= len(ip). Bytes after n
// are padding.
func Length(ip []byte) (n int, ok bool) {
	switch {
	case len(ip) >= IPv4HeaderLen && ip[0]>>4 == 4:
		h := IPv4(ip)
		n = h.TotalLen()
		return n, h.HeaderLen() >= IPv4HeaderLen && h.HeaderLen() <= n && n <= len(ip)
	case len(ip) >= IPv6HeaderLen && ip[0]>>4 == 6:
		n = IPv6HeaderLen + IPv6(ip).PayloadLen()
		return n, n <= len(ip)
	}
	return 0, false
}

// Source returns the source address of a packet for which Length returned ok.
func Source(ip []byte) netip.Addr {
	if ip[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(ip[12:16]))
	}
	return netip.AddrFrom16([16]byte(ip[8:24]))
}

// Destination returns the destination address of a packet for which Length returned ok.
func Destination(ip []byte) netip.Addr {
	if ip[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(ip[16:20]))
	}
	return netip.AddrFrom16([16]byte(ip[24:40]))
}

func be16(b []byte) uint16       { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32       { return binary.BigEndian.Uint32(b) }
func be64(b []byte) uint64       { return binary.BigEndian.Uint64(b) }
func putBE16(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
func putBE32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }
