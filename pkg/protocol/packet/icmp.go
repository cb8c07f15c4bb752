// SPDX-License-Identifier: Apache-2.0

package packet

import "net/netip"

const (
	// MaxICMPError is the size in bytes of the largest ICMP error: the IPv6 minimum MTU (RFC 4443, section 2.4, rule c).
	MaxICMPError = IPv6MinMTU
	// maxICMPv4Error is the limit for IPv4 (RFC 1812, section 4.3.2.3).
	maxICMPv4Error = 576
	// icmpErrorHeaderLen is the length in bytes of the ICMP header in front of the quoted packet, in both versions.
	icmpErrorHeaderLen = 8
)

// The least MTU of a link, in bytes.
const (
	IPv4MinMTU = 68   // RFC 791, section 3.2
	IPv6MinMTU = 1280 // RFC 8200, section 5
)

// Types and codes of the errors (RFC 792, RFC 1191, section 4; RFC 4443, sections 3.1 and 3.2).
const (
	icmpUnreachable         = 3
	icmpHostUnreachable     = 1
	icmpFragmentationNeeded = 4
	icmp6Unreachable        = 1
	icmp6AddressUnreachable = 3
	icmp6PacketTooBig       = 2
	icmp6Informational      = 128 // the first type that is no error
	icmp6Redirect           = 137
)

// AllowsICMPError reports whether a router may answer a packet, for which Length returned ok, with an ICMP error (RFC
// 1812, section 4.3.2.7; RFC 4443, section 2.4, rule e): never an ICMP error, a fragment other than the first, or a
// packet from or to other than a single host. The broadcast addresses of subnets are not known here. RFC 4443 would allow Packet Too
// Big about a packet to a multicast group, but such an error would have the group for its source (WritePacketTooBig).
func AllowsICMPError(ip []byte) bool {
	src, dst := Source(ip), Destination(ip)
	if src.IsUnspecified() || src.IsLoopback() || src.IsMulticast() || dst.IsMulticast() || dst.IsUnspecified() {
		return false
	}
	if ip[0]>>4 == 4 {
		return !isReserved4(src) && !isReserved4(dst) && allowsICMPv4Error(IPv4(ip))
	}
	return allowsICMPv6Error(ip)
}

// isReserved4 reports whether an IPv4 address is in 0.0.0.0/8 or 240.0.0.0/4, in which the limited broadcast is.
func isReserved4(a netip.Addr) bool {
	first := a.As4()[0]
	return first == 0 || first >= 240
}

func allowsICMPv4Error(h IPv4) bool {
	switch {
	case be16(h[6:8])&ipv4OffsetMask != 0:
		return false
	case h.Protocol() != ICMP:
		return true
	case h.TotalLen() <= h.HeaderLen():
		return false
	}
	// Linux also takes unknown types for errors (icmp_pointers in net/ipv4/icmp.c).
	switch h[h.HeaderLen()] {
	case 0, 8, 9, 10, 13, 14, 15, 16, 17, 18: // echo, router discovery, timestamp, information, address mask
		return true
	}
	return false
}

// allowsICMPv6Error follows all extension headers, also those inside a first fragment, since an ICMP error may be behind them.
func allowsICMPv6Error(ip []byte) bool {
	const offsetMask = 0xfff8
	protocol, at := IPv6(ip).NextHeader(), IPv6HeaderLen
	for range maxExtensions {
		if len(ip)-at < 8 {
			return protocol != ICMPv6 && !isExtension(protocol)
		}
		header, size := ip[at:], 8
		switch protocol {
		case HopByHop, Routing, DestOptions:
			size += 8 * int(header[1])
		case AuthenticationHeader:
			size += 4 * int(header[1])
		case Fragment:
			if be16(header[2:4])&offsetMask != 0 {
				return false
			}
		case ICMPv6:
			return header[0] >= icmp6Informational && header[0] != icmp6Redirect
		default:
			return true
		}
		protocol, at = Protocol(header[0]), min(at+size, len(ip))
	}
	return false
}

func isExtension(p Protocol) bool {
	switch p {
	case HopByHop, Routing, DestOptions, AuthenticationHeader, Fragment:
		return true
	}
	return false
}

// WritePacketTooBig writes to dst the ICMP error for ip, which exceeds the mtu in bytes of the next hop: Fragmentation
// Needed (RFC 1191, section 4) or Packet Too Big (RFC 4443, section 3.2), with an MTU of at least 1280. It returns the
// length. dst has room for MaxICMPError bytes, and AllowsICMPError holds for ip.
//
// The error's source is the destination of ip. Linux has the same source for tunnels without an
// address of their own (iptunnel_pmtud_build_icmp, net/ipv4/ip_tunnel_core.c), as tinc. The
// in-kernel WireGuard answers from an address of the host (icmp_ndo_send). A TUN cannot: Linux
// discards packets that arrive from the host's own addresses (fib_validate_source). The host has a
// route to the destination of ip through the TUN, so the reverse-path filter accepts that source.
func WritePacketTooBig(dst, ip []byte, mtu int) int {
	if ip[0]>>4 == 4 {
		return writeICMPv4Error(dst, ip, icmpFragmentationNeeded, uint32(min(mtu, MaxLen)))
	}
	return writeICMPv6Error(dst, ip, icmp6PacketTooBig, 0, uint32(max(mtu, IPv6MinMTU)))
}

// WriteHostUnreachable is WritePacketTooBig for a packet that cannot be delivered: Host Unreachable, or Address
// Unreachable in IPv6, as the in-kernel WireGuard answers (wg_xmit in drivers/net/wireguard/device.c).
func WriteHostUnreachable(dst, ip []byte) int {
	if ip[0]>>4 == 4 {
		return writeICMPv4Error(dst, ip, icmpHostUnreachable, 0)
	}
	return writeICMPv6Error(dst, ip, icmp6Unreachable, icmp6AddressUnreachable, 0)
}

// icmpTTL is Linux's default.
const icmpTTL = 64

// writeICMPv4Error writes a Destination Unreachable. Its precedence is internetwork control (RFC
// 1812, section 4.3.2.5). With DF no identification is needed (RFC 6864, section 4.1).
func writeICMPv4Error(dst, ip []byte, code byte, rest uint32) int {
	const quote = IPv4HeaderLen + icmpErrorHeaderLen
	n := quote + copy(dst[quote:maxICMPv4Error], ip)
	clear(dst[:quote])
	h := IPv4(dst)
	h[0], h[1], h[6], h[8], h[9] = 0x45, 0xc0, IPv4DontFragment>>8, icmpTTL, byte(ICMP)
	h.SetTotalLen(n)
	copy(h[12:16], ip[16:20])
	copy(h[16:20], ip[12:16])
	h.SetChecksum(Checksum(h[:IPv4HeaderLen]))
	icmp := dst[IPv4HeaderLen:n]
	icmp[0], icmp[1] = icmpUnreachable, code
	putBE32(icmp[4:8], rest)
	putBE16(icmp[2:4], Checksum(icmp))
	return n
}

func writeICMPv6Error(dst, ip []byte, kind, code byte, rest uint32) int {
	const quote = IPv6HeaderLen + icmpErrorHeaderLen
	n := quote + copy(dst[quote:MaxICMPError], ip)
	clear(dst[:quote])
	h := IPv6(dst)
	h[0], h[6], h[7] = 0x60, byte(ICMPv6), icmpTTL
	h.SetPayloadLen(n - IPv6HeaderLen)
	copy(h[8:24], ip[24:40])
	copy(h[24:40], ip[8:24])
	icmp := dst[IPv6HeaderLen:n]
	icmp[0], icmp[1] = kind, code
	putBE32(icmp[4:8], rest)
	putBE16(icmp[2:4], ^Fold(Sum(icmp, PseudoSum(h, ICMPv6, len(icmp)))))
	return n
}
