// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Control messages (cmsg(3)) are a header of length, level and type, then the data, each padded to the word size.
const (
	cmsgHeader = unix.SizeofCmsghdr
	cmsgWord   = unix.SizeofPtr
	// rxControlSize holds a pktinfo of either family, the traffic class and a UDP_GRO int, with room for one
	// unrequested message.
	rxControlSize = 128
	// txControlSize holds an IPv6 pktinfo, a UDP_SEGMENT u16 and a traffic class int.
	txControlSize = (cmsgHeader + unix.SizeofInet6Pktinfo + cmsgWord) + 2*(cmsgHeader+cmsgWord)
)

// cmsgAlign rounds up to where the next control message starts.
func cmsgAlign(n int) int { return (n + cmsgWord - 1) &^ (cmsgWord - 1) }

// putCmsg writes a header for size bytes of data at the start of b and returns the data and the padded length.
func putCmsg(b []byte, level, kind, size int) (data []byte, n int) {
	length := cmsgHeader + size
	if cmsgWord == 8 {
		binary.NativeEndian.PutUint64(b, uint64(length))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(length))
	}
	binary.NativeEndian.PutUint32(b[cmsgWord:], uint32(level))
	binary.NativeEndian.PutUint32(b[cmsgWord+4:], uint32(kind))
	clear(b[cmsgHeader:cmsgAlign(length)])
	return b[cmsgHeader:length], cmsgAlign(length)
}

// nextCmsg splits off the first control message. ok is false if there is none, or if its length is invalid.
func nextCmsg(b []byte) (level, kind uint32, data, rest []byte, ok bool) {
	if len(b) < cmsgHeader {
		return 0, 0, nil, nil, false
	}
	length := uint64(binary.NativeEndian.Uint32(b))
	if cmsgWord == 8 {
		length = binary.NativeEndian.Uint64(b)
	}
	if length < cmsgHeader || length > uint64(len(b)) {
		return 0, 0, nil, nil, false
	}
	level = binary.NativeEndian.Uint32(b[cmsgWord:])
	kind = binary.NativeEndian.Uint32(b[cmsgWord+4:])
	rest = b[min(cmsgAlign(int(length)), len(b)):]
	return level, kind, b[cmsgHeader:length], rest, true
}

// putSource writes the local address to send from (ip(7) IP_PKTINFO, RFC 3542 section 6), and returns the bytes used.
// It returns 0 if routing chooses the address. A link-local source needs the scope.
func putSource(b []byte, src netip.Addr, scope uint32) int {
	switch {
	case src.Is4():
		data, n := putCmsg(b, unix.SOL_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		ip := src.As4()
		copy(data[4:], ip[:]) // ipi_spec_dst
		return n
	case src.Is6():
		data, n := putCmsg(b, unix.SOL_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		ip := src.As16()
		copy(data, ip[:])
		binary.NativeEndian.PutUint32(data[16:], scope)
		return n
	}
	return 0
}

// putSegmentSize requests UDP GSO (UDP_SEGMENT, kernel commit bec1f6f69736).
func putSegmentSize(b []byte, size int) int {
	data, n := putCmsg(b, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(data, uint16(size))
	return n
}

// putTOS sets DSCP and ECN (IP_TOS, ip(7); IPV6_TCLASS, RFC 3542, section 6.5). The family is the
// destination's: for a mapped address an IPv6 socket uses IP_TOS and ignores IPV6_TCLASS.
func putTOS(b []byte, ipv4 bool, tos uint8) int {
	level, kind := unix.SOL_IPV6, unix.IPV6_TCLASS
	if ipv4 {
		level, kind = unix.SOL_IP, unix.IP_TOS
	}
	data, n := putCmsg(b, level, kind, 4)
	binary.NativeEndian.PutUint32(data, uint32(tos))
	return n
}

// parseControl reads from the control messages of d the local address, ECN and the coalesced
// datagrams' size (UDP_GRO, kernel commit e20cf8d3f1f7). It skips unknown messages, and everything
// after a malformed one.
func parseControl(b []byte, d *underlay.Datagrams) {
	for {
		level, kind, data, rest, ok := nextCmsg(b)
		if !ok {
			return
		}
		b = rest
		switch {
		case level == unix.SOL_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			if size := int(int32(binary.NativeEndian.Uint32(data))); size > 0 && size < d.N {
				d.SegSize = size
			}
		case level == unix.SOL_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			d.From.Src = netip.AddrFrom4([4]byte(data[4:8]))
		case level == unix.SOL_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			d.From.Src = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		case level == unix.SOL_IP && kind == unix.IP_TOS && len(data) >= 1: // a single byte, unlike all others
			d.ECN = packet.ECNOfTOS(data[0])
		case level == unix.SOL_IPV6 && kind == unix.IPV6_TCLASS && len(data) >= 4:
			d.ECN = packet.ECNOfTOS(uint8(binary.NativeEndian.Uint32(data)))
		}
	}
}
