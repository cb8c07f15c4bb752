// SPDX-License-Identifier: Apache-2.0

package packet

// ECN is the congestion notification field of an IP header (RFC 3168, section 5). It is the low
// two bits of the IPv4 TOS byte or the IPv6 traffic class.
type ECN uint8

// The code points (RFC 3168, section 5). NotECT means that the sender does not support ECN.
const (
	NotECT ECN = iota
	ECT1
	ECT0
	CE // congestion experienced

	ecnMask = 3
)

// ECNOfTOS returns the field of a TOS byte or traffic class.
func ECNOfTOS(tos uint8) ECN { return ECN(tos & ecnMask) }

// ECNOf returns the field of an IP packet of at least two bytes, and NotECT of anything else.
func ECNOf(ip []byte) ECN {
	if len(ip) < 2 {
		return NotECT
	}
	switch ip[0] >> 4 {
	case 4:
		return ECNOfTOS(ip[1])
	case 6:
		return ECNOfTOS(ip[1] >> 4)
	}
	return NotECT
}

// Outer returns the field for the outer header of a packet with field e: e, but ECT0 for CE. So a CE mark on the
// outer header comes from the tunnel's path (RFC 3168, section 9.1.1, full functionality; Linux's
// ip_tunnel_ecn_encap).
func (e ECN) Outer() ECN {
	if e == CE {
		return ECT0
	}
	return e
}

// SetCE sets CE in a packet for which Length returned ok, and updates the IPv4 header checksum incrementally (RFC
// 1624, equation 3): a wrong checksum stays wrong. A packet whose sender does not support ECN stays unchanged.
func SetCE(ip []byte) {
	if ECNOf(ip) == NotECT {
		return
	}
	if ip[0]>>4 == 6 {
		ip[1] |= byte(CE) << 4
		return
	}
	h := IPv4(ip)
	old := be16(h[0:2])
	h[1] |= byte(CE)
	h.SetChecksum(^Fold(uint64(^h.Checksum()) + uint64(^old) + uint64(be16(h[0:2]))))
}
