// SPDX-License-Identifier: Apache-2.0

package mesh

import "net/netip"

// Bytes that an encapsulation adds to an IP packet.
const (
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
	// WireGuard is the header of a data message and its authentication tag (paper, section 5.4.6). Padding never exceeds the
	// MTU, so it adds nothing to the largest packets.
	WireGuard = 16 + 16
	// VXLAN is the VXLAN header and the inner Ethernet header (RFC 7348, section 5).
	VXLAN = 8 + 14
)

// MinMTU is the minimum MTU of IPv6 (RFC 8200, section 5).
const MinMTU = 1280

// Layer is an encapsulation in UDP.
type Layer struct {
	// IPv6 reports that the outer packets are IPv6.
	IPv6 bool
	// Bytes is the size of the headers and trailers between the UDP header and the inner IP packet.
	Bytes int
}

// Overhead returns the bytes that the layer adds to an IP packet.
func (l Layer) Overhead() int {
	if l.IPv6 {
		return ipv6Header + udpHeader + l.Bytes
	}
	return ipv4Header + udpHeader + l.Bytes
}

// MTU returns the largest IP packet that fits a link inside all layers.
func MTU(link int, layers ...Layer) int {
	for _, l := range layers {
		link -= l.Overhead()
	}
	return link
}

// WireGuardLayer returns WireGuard's layer for an endpoint.
func WireGuardLayer(endpoint netip.Addr) Layer {
	return Layer{IPv6: !endpoint.Unmap().Is4(), Bytes: WireGuard}
}
