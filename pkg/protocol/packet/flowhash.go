// SPDX-License-Identifier: Apache-2.0

package packet

// FlowHash returns a hash of the inner flow that is the same in both directions. It covers the addresses, the
// transport protocol, and the ports of TCP, UDP and SCTP. Fragments are hashed without ports, so that all fragments
// of a datagram have one hash. The IPv6 flow label is not used. All bits of the result are equally distributed. The
// hash of bytes that are no IP packet is 0.
//
// The hash is defined in 64-bit arithmetic, so that eBPF can compute the same (all fields in network order):
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
	if !ok || t.Fragment && ip[0]>>4 == 6 {
		return fragmentProtocol(ip, t), 0, 0
	}
	if t.Fragment || !t.Protocol.hasPorts() || len(ip)-t.Offset < 4 {
		return t.Protocol, 0, 0
	}
	return t.Protocol, be16(ip[t.Offset : t.Offset+2]), be16(ip[t.Offset+2 : t.Offset+4])
}

// fragmentProtocol returns the next header in an IPv6 fragment header: all fragments of a datagram carry the same.
func fragmentProtocol(ip []byte, t Transport) Protocol {
	if t.Protocol == Fragment && t.Offset < len(ip) {
		return Protocol(ip[t.Offset])
	}
	return t.Protocol
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
