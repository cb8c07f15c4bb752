// SPDX-License-Identifier: Apache-2.0

package tuntest

import (
	"encoding/binary"
	"net/netip"
)

// addresses returns the two ends of the test packets: local is the host's address on the interface, remote is behind it.
func addresses() (local, remote netip.Addr) {
	return netip.AddrFrom4([4]byte{10, 99, 0, 1}), netip.AddrFrom4([4]byte{10, 99, 0, 2})
}

// headers is the size of the headers of a packet of makePacket.
const headers = 20 + 8

// makePacket returns an IPv4 UDP packet of size bytes (no UDP checksum) whose identification is the number.
func makePacket(from, to netip.Addr, number uint16, size int) []byte {
	p := make([]byte, size)
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	binary.BigEndian.PutUint16(p[4:], number+1) // 0 would be filled in by the kernel
	src, dst := from.As4(), to.As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	binary.BigEndian.PutUint16(p[10:], checksum(p[:20]))
	binary.BigEndian.PutUint16(p[20:], 4242)
	binary.BigEndian.PutUint16(p[22:], 4243)
	binary.BigEndian.PutUint16(p[24:], uint16(size-20))
	for i := headers; i < size; i++ {
		p[i] = byte(int(number) + i)
	}
	return p
}

// checksum is RFC 1071's, written as simply as possible.
func checksum(b []byte) uint16 {
	sum := 0
	for i := 0; i < len(b); i += 2 {
		sum += int(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
