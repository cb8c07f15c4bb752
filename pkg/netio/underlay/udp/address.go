// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// sockaddr holds a struct sockaddr_in or sockaddr_in6.
type sockaddr [unix.SizeofSockaddrInet6]byte

// putSockaddr writes the destination for a socket of the given family, and returns its length. The result is 0 if such
// a socket cannot reach it. An IPv6 socket reaches IPv4 through mapped addresses (RFC 3493, section 3.7).
func putSockaddr(b *sockaddr, family int, to *underlay.Endpoint) uint32 {
	addr := to.Dst.Addr()
	*b = sockaddr{}
	binary.NativeEndian.PutUint16(b[:], uint16(family))
	binary.BigEndian.PutUint16(b[2:], to.Dst.Port())
	if family == unix.AF_INET {
		if !addr.Is4() {
			return 0
		}
		ip := addr.As4()
		copy(b[4:], ip[:])
		return unix.SizeofSockaddrInet4
	}
	ip := addr.As16()
	copy(b[8:], ip[:])
	binary.NativeEndian.PutUint32(b[24:], to.Scope)
	return unix.SizeofSockaddrInet6
}

// parseSockaddr returns the sender's address, never as 4-in-6, and its scope. An address that is neither IPv4 nor IPv6
// gives the zero AddrPort.
func parseSockaddr(b []byte) (netip.AddrPort, uint32) {
	if len(b) < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}, 0
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), 0
	case unix.AF_INET6:
		if len(b) < unix.SizeofSockaddrInet6 {
			break
		}
		addr := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
		return netip.AddrPortFrom(addr, port), binary.NativeEndian.Uint32(b[24:])
	}
	return netip.AddrPort{}, 0
}
