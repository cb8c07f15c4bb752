// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	ipHeader  = 20
	udpHeader = 8
)

// outerPacket returns an IPv4 packet with a UDP datagram.
func outerPacket(from, to netip.AddrPort, payload []byte, badChecksum bool) []byte {
	b := make([]byte, ipHeader+udpHeader+len(payload))
	fillHeader(b, from.Addr().As4(), to.Addr().As4())
	u := b[ipHeader:]
	binary.BigEndian.PutUint16(u, from.Port())
	binary.BigEndian.PutUint16(u[2:], to.Port())
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	copy(u[udpHeader:], payload)
	pseudo := append(append([]byte{}, b[12:20]...), 0, unix.IPPROTO_UDP, u[4], u[5])
	sum := packet.Checksum(append(pseudo, u...))
	if sum == 0 {
		sum = 0xffff
	}
	if badChecksum {
		sum ^= 0x5555
	}
	binary.BigEndian.PutUint16(u[6:], sum)
	return b
}

// innerPacket returns an IPv4 packet with UDP and a kilobyte of payload, without the UDP checksum.
func innerPacket(from, to [4]byte) []byte {
	b := make([]byte, ipHeader+udpHeader+1024)
	fillHeader(b, from, to)
	binary.BigEndian.PutUint16(b[ipHeader+2:], 9)
	binary.BigEndian.PutUint16(b[ipHeader+4:], uint16(len(b)-ipHeader))
	return b
}

func fillHeader(b []byte, from, to [4]byte) {
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], from[:])
	copy(b[16:], to[:])
	binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:ipHeader]))
}
