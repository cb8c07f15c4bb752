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
	vlanTags    = 2 // as many as the classifier looks behind
	maxHeader   = ethernetLen + vlanLen + packet.IPv6HeaderLen + packet.UDPHeaderLen
	// minFrame is what Ethernet pads frames to, without the check sequence (IEEE 802.3, clause 4.2.3.3).
	minFrame = 60
)

const (
	etherTypeVLAN  packet.EtherType = 0x8100 // IEEE 802.1Q
	etherTypeSVLAN packet.EtherType = 0x88a8 // IEEE 802.1ad
)

// flow is what datagrams of one element have in common. It is comparable.
type flow struct {
	src, dst [16]byte // of IPv4, the first four bytes
	port     uint16   // of the source
	v6       bool
	ecn      packet.ECN
}

// parseFrame returns the UDP payload of an Ethernet frame for a port, and whose it is. ok is false for anything else: what is
// malformed, fragmented or padded in a way that contradicts its headers. Checksums are not looked at: the payload has its
// authentication tag, and bpf/classify.bpf.c tells what follows from that for the addresses.
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

// skipEthernet returns what the frame carries, behind at most vlanTags tags.
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

// parseIPv4 returns nil for what is not a whole packet of UDP.
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

// parseIPv6 follows no extension headers: no WireGuard sends them, and the classifier lets them pass.
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
