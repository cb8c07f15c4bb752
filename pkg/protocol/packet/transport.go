// SPDX-License-Identifier: Apache-2.0

package packet

// Transport is the location of a packet's transport header.
type Transport struct {
	// Protocol is the transport protocol, or the first IPv6 next header that is not skipped.
	Protocol Protocol
	// Offset is the start of that header, in bytes from the IP header; at most the packet's length.
	Offset int
	// Fragment is set for every fragment; Offset then need not be a transport header.
	Fragment bool
}

// maxExtensions bounds the walk over IPv6 extension headers. RFC 8200, section 4.1, allows seven in a packet.
const maxExtensions = 8

// FindTransport locates the transport header of a packet for which Length returned ok. It skips IPv6 hop-by-hop
// options, routing headers and destination options. ok is false if their lengths are invalid or there are
// maxExtensions or more. The caller must check that the transport header itself is complete.
func FindTransport(ip []byte) (t Transport, ok bool) {
	if ip[0]>>4 == 4 {
		h := IPv4(ip)
		return Transport{h.Protocol(), h.HeaderLen(), h.IsFragment()}, true
	}
	return skipExtensions(ip, Transport{Protocol: IPv6(ip).NextHeader(), Offset: IPv6HeaderLen})
}

// skipExtensions moves t past the IPv6 extension headers that are skipped, up to a fragment header.
func skipExtensions(ip []byte, t Transport) (Transport, bool) {
	for range maxExtensions {
		switch t.Protocol {
		case HopByHop, Routing, DestOptions:
			if len(ip)-t.Offset < 8 {
				return t, false
			}
			next, size := Protocol(ip[t.Offset]), 8+8*int(ip[t.Offset+1])
			if size > len(ip)-t.Offset {
				return t, false
			}
			t.Protocol, t.Offset = next, t.Offset+size
		case Fragment:
			t.Fragment = true
			return t, true
		default:
			return t, true
		}
	}
	return t, false
}
