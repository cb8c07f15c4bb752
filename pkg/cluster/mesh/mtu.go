// SPDX-License-Identifier: Apache-2.0

package mesh

import "net/netip"

// Bytes that an encapsulation adds to an IP packet.
const (
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
	// wireGuard is the header of a data message and its authentication tag (paper, section 5.4.6). Padding never exceeds the
	// MTU, so it adds nothing to the largest packets.
	wireGuard = 16 + 16
)

// MinMTU is the minimum MTU of IPv6 (RFC 8200, section 5).
const MinMTU = 1280

// MTU returns the largest IP packet that fits a link inside messages to an endpoint.
func MTU(link int, endpoint netip.Addr) int {
	if endpoint.Unmap().Is4() {
		return link - ipv4Header - udpHeader - wireGuard
	}
	return link - ipv6Header - udpHeader - wireGuard
}
