// SPDX-License-Identifier: Apache-2.0

package packet

// FlowHash returns a hash of the inner flow that is the same in both directions. It covers the
// addresses, the transport protocol, and the ports of TCP, UDP and SCTP. Later fragments have no
// ports: Fragments remembers the hash of the first one. The IPv6 flow label is not used. All bits
// of the result are equally distributed. The hash of bytes that are no IP packet is 0. The hash is
// defined in 64-bit arithmetic, so that eBPF can compute the same (all fields in network order):
//
//	mix(x) = x ^= x>>32; x *= 0xd6e8feb86659fd93; twice, then x ^= x>>32
//	end    = mix(address<<16 | port)                  IPv4
//	end    = mix(mix(address high) + address low + port)   IPv6
//	hash   = mix(end(source) + end(destination) + protocol) >> 32
func FlowHash(ip []byte) uint32 {
	n, ok := Length(ip)
	if !ok {
		return 0
	}
	proto, srcPort, dstPort := flowPorts(ip[:n])
	var ends uint64
	if ip[0]>>4 == 4 {
		ends = mix(uint64(be32(ip[12:16]))<<16|uint64(srcPort)) + mix(uint64(be32(ip[16:20]))<<16|uint64(dstPort))
	} else {
		ends = mix(mix(be64(ip[8:16]))+be64(ip[16:24])+uint64(srcPort)) +
			mix(mix(be64(ip[24:32]))+be64(ip[32:40])+uint64(dstPort))
	}
	return uint32(mix(ends+uint64(proto)) >> 32)
}

// flowPorts returns the protocol of the flow, and its ports if the packet contains them.
func flowPorts(ip []byte) (proto Protocol, src, dst uint16) {
	t, ok := FindTransport(ip)
	if t.Fragment {
		t, ok = firstFragmentTransport(ip, t)
	}
	if !ok || !t.Protocol.hasPorts() || len(ip)-t.Offset < 4 {
		return t.Protocol, 0, 0
	}
	return t.Protocol, be16(ip[t.Offset : t.Offset+2]), be16(ip[t.Offset+2 : t.Offset+4])
}

// firstFragmentTransport returns the transport header of a fragment; ok is false in all but the
// first fragment of a datagram. The protocol then comes from the fragment header, which all
// fragments of a datagram carry.
func firstFragmentTransport(ip []byte, t Transport) (Transport, bool) {
	if ip[0]>>4 == 4 {
		return t, be16(ip[6:8])&ipv4OffsetMask == 0
	}
	if len(ip)-t.Offset < fragmentHeaderLen {
		if t.Offset < len(ip) {
			t.Protocol = Protocol(ip[t.Offset])
		}
		return t, false
	}
	h := ip[t.Offset : t.Offset+fragmentHeaderLen]
	t = Transport{Protocol: Protocol(h[0]), Offset: t.Offset + fragmentHeaderLen}
	if be16(h[2:4])&ipv6OffsetMask != 0 {
		return t, false
	}
	return skipExtensions(ip, t)
}

// mix is a bijection of 64-bit words in which every input bit reaches every output bit.
func mix(x uint64) uint64 {
	const odd = 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= odd
	x ^= x >> 32
	x *= odd
	return x ^ x>>32
}
