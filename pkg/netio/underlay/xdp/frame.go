// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// Sizes in bytes.
const (
	ethernetLen = 14
	vlanLen     = 4
	vlanTags    = 2 // the number of tags that the classifier skips
	maxHeader   = ethernetLen + vlanLen + packet.IPv6HeaderLen + packet.UDPHeaderLen
	// minFrame is the size to which Ethernet pads frames, without the check sequence (IEEE 802.3, clause 4.2.3.3).
	minFrame = 60
)

const (
	etherTypeVLAN  packet.EtherType = 0x8100 // IEEE 802.1Q
	etherTypeSVLAN packet.EtherType = 0x88a8 // IEEE 802.1ad
)

// flow identifies the datagrams that may share one element. It is comparable.
type flow struct {
	src, dst [16]byte // IPv4 uses the first four bytes
	port     uint16   // source port
	v6       bool
	ecn      packet.ECN
}

// parseFrame returns the flow and the UDP payload of an Ethernet frame for a port. ok is false for
// all other frames, and for frames that are malformed, fragmented, or padded in a way that
// contradicts their headers. It does not verify checksums: the payload has an authentication tag,
// and bpf/classify.bpf.c explains the consequence for the addresses.
func parseFrame(frame []byte, port uint16) (f flow, payload []byte, ok bool) {
	kind, ip := skipEthernet(frame)
	var udp []byte
	switch kind {
	case packet.EtherTypeIPv4:
		f, udp = parseIPv4(ip)
	case packet.EtherTypeIPv6:
		f, udp = parseIPv6(ip)
	}
	if len(udp) < packet.UDPHeaderLen {
		return flow{}, nil, false
	}
	h := packet.UDPHeader(udp)
	if h.Len() != len(udp) || binary.BigEndian.Uint16(udp[2:]) != port {
		return flow{}, nil, false
	}
	f.port = binary.BigEndian.Uint16(udp)
	return f, udp[packet.UDPHeaderLen:], true
}

// skipEthernet returns the EtherType and payload of a frame, behind at most vlanTags VLAN tags.
func skipEthernet(frame []byte) (packet.EtherType, []byte) {
	if len(frame) < ethernetLen {
		return 0, nil
	}
	kind, rest := packet.EtherType(binary.BigEndian.Uint16(frame[12:])), frame[ethernetLen:]
	for range vlanTags {
		if kind != etherTypeVLAN && kind != etherTypeSVLAN {
			break
		}
		if len(rest) < vlanLen {
			return 0, nil
		}
		kind, rest = packet.EtherType(binary.BigEndian.Uint16(rest[2:])), rest[vlanLen:]
	}
	return kind, rest
}

// parseIPv4 returns nil unless ip is a complete, unfragmented UDP packet.
func parseIPv4(ip []byte) (f flow, udp []byte) {
	n, ok := packet.Length(ip)
	if !ok || ip[0]>>4 != 4 {
		return f, nil
	}
	h := packet.IPv4(ip)
	if h.Protocol() != packet.UDP || h.IsFragment() {
		return f, nil
	}
	f.ecn = packet.ECNOfTOS(ip[1])
	copy(f.src[:4], ip[12:16])
	copy(f.dst[:4], ip[16:20])
	return f, ip[h.HeaderLen():n]
}

// parseIPv6 follows no extension headers: no WireGuard implementation sends them, and the classifier passes them to the
// stack.
func parseIPv6(ip []byte) (f flow, udp []byte) {
	n, ok := packet.Length(ip)
	if !ok || ip[0]>>4 != 6 || packet.IPv6(ip).NextHeader() != packet.UDP {
		return f, nil
	}
	f.v6, f.ecn = true, packet.ECNOf(ip)
	copy(f.src[:], ip[8:24])
	copy(f.dst[:], ip[24:40])
	return f, ip[packet.IPv6HeaderLen:n]
}
