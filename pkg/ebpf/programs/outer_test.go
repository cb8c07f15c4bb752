// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Kinds of UDP checksums.
const (
	whole = iota
	none
)

// datagram is an outer packet with an Ethernet header.
type datagram struct {
	src, dst string
	payload  []byte
	checksum int
	tags     []uint16 // EtherTypes of VLAN tags
	vlan     byte     // the number in each; 0: of no VLAN
	options  int      // in words of 4 bytes
	hops     byte     // TTL or hop limit; 0: 64
}

// message returns a WireGuard message of that type and size.
func message(kind byte, size int) []byte {
	b := make([]byte, max(size, 4))
	b[0] = kind
	for i := range b[4:] {
		b[4+i] = byte(i*7 + 1)
	}
	return b[:size]
}

func data(src, dst string) datagram {
	return datagram{src: src, dst: dst, payload: message(4, 96)}
}

func (d datagram) with(change func(*datagram)) datagram {
	change(&d)
	return d
}

// bytes returns the packet from its Ethernet header on.
func (d datagram) bytes() []byte {
	src, dst := netip.MustParseAddrPort(d.src), netip.MustParseAddrPort(d.dst)
	ip, ethertype := ipv6(packet.UDP, 8+len(d.payload)), uint16(packet.EtherTypeIPv6)
	if src.Addr().Is4() {
		ip, ethertype = ipv4(packet.UDP, 8+len(d.payload)), uint16(packet.EtherTypeIPv4)
		copy(ip[12:], slices.Concat(src.Addr().AsSlice(), dst.Addr().AsSlice()))
		ip[8] = cmp.Or(d.hops, 64)
	} else {
		copy(ip[8:], slices.Concat(src.Addr().AsSlice(), dst.Addr().AsSlice()))
		ip[7] = cmp.Or(d.hops, 64)
	}
	udp := ip[len(ip)-8-len(d.payload):]
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[8:], d.payload)
	if d.checksum == whole {
		binary.BigEndian.PutUint16(udp[6:], udpChecksum(ip, udp))
	}
	if d.options > 0 {
		ip = addIPv4Options(ip, d.options)
	}
	return slices.Concat(ethernet(ethertype, d.vlan, d.tags...), ip)
}

// ethernet returns a header, with VLAN tags.
func ethernet(ethertype uint16, vlan byte, tags ...uint16) []byte {
	b := make([]byte, 12, 22)
	for _, tag := range tags {
		b = binary.BigEndian.AppendUint16(b, tag)
		b = append(b, 0xe0, vlan)
	}
	return binary.BigEndian.AppendUint16(b, ethertype)
}

// udpChecksum returns the UDP checksum (RFC 768).
func udpChecksum(ip, udp []byte) uint16 {
	addresses := ip[12:20]
	if packet.VersionOf(ip) == packet.Version6 {
		addresses = ip[8:40]
	}
	covered := slices.Concat(addresses, []byte{0, 17}, udp[4:6], udp[:6], []byte{0, 0}, udp[8:], make([]byte, len(udp)%2))
	sum := uint32(0)
	for i := 0; i < len(covered); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(covered[i:]))
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0xffff
	}
	return ^uint16(sum)
}

// checksumZeroFlow returns a data message whose checksum is 0, written as 0xffff, when it goes from src to dst.
func checksumZeroFlow(src, dst string) []byte {
	d := datagram{src: src, dst: dst, payload: message(4, 96)}
	d.payload[94], d.payload[95] = 0, 0
	b := d.bytes()
	copy(d.payload[94:], b[len(b)-96-2:len(b)-96])
	return d.payload
}
