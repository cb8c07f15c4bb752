/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_FLOW_HASH_H
#define ROPEWALK_FLOW_HASH_H

#include "bpf.h"
#include "ip.h"

/*
 * The hash of an inner flow, by which steer.bpf.c chooses the TUN queue. It equals that of FlowHash in pkg/protocol/packet. It is
 * symmetric: both directions of a flow have the same hash.
 */

/* A bijective mixing function: every bit of the input affects every bit of the output. */
INLINE u64 mix(u64 x)
{
	const u64 odd = 0xd6e8feb86659fd93ULL;

	x ^= x >> 32;
	x *= odd;
	x ^= x >> 32;
	x *= odd;
	return x ^ x >> 32;
}

INLINE u64 hash_ipv4_endpoint(be32 address, be16 port)
{
	return mix((u64)host32(address) << 16 | host16(port));
}

INLINE u64 hash_ipv6_endpoint(const be64 address[2], be16 port)
{
	return mix(mix(host64(address[0])) + host64(address[1]) + host16(port));
}

/* The sum makes the hash symmetric. */
INLINE u32 hash_endpoints(u64 src, u64 dst, u8 protocol)
{
	return mix(src + dst + protocol) >> 32;
}

/* Returns the ports. Both are 0 in fragments, in truncated packets, and for all other protocols. */
INLINE struct ports load_ports(struct __sk_buff *skb, const struct transport *t)
{
	struct ports ports = {};

	switch (t->protocol) {
	case PROTO_TCP:
	case PROTO_UDP:
	case PROTO_SCTP:
		if (t->found && t->end - t->offset >= sizeof(ports))
			bpf_skb_load_bytes(skb, t->offset, &ports, sizeof(ports));
	}
	return ports;
}

INLINE u32 ipv4_flow_hash(struct __sk_buff *skb)
{
	struct ipv4_header ip;
	struct transport t;
	struct ports ports;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || !ipv4_transport(skb, &ip, &t))
		return 0;
	ports = load_ports(skb, &t);
	return hash_endpoints(hash_ipv4_endpoint(ip.src, ports.src), hash_ipv4_endpoint(ip.dst, ports.dst), t.protocol);
}

INLINE u32 ipv6_flow_hash(struct __sk_buff *skb)
{
	struct ipv6_header ip;
	struct transport t;
	struct ports ports;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || !ipv6_transport(skb, &ip, &t))
		return 0;
	ports = load_ports(skb, &t);
	return hash_endpoints(hash_ipv6_endpoint(ip.src, ports.src), hash_ipv6_endpoint(ip.dst, ports.dst), t.protocol);
}

/* Returns the hash of the packet's flow, or 0 if it is not a valid IP packet. The packet begins with its IP header. */
INLINE u32 flow_hash(struct __sk_buff *skb)
{
	u8 version;

	if (bpf_skb_load_bytes(skb, 0, &version, sizeof(version)))
		return 0;
	switch (version >> 4) {
	case 4:
		return ipv4_flow_hash(skb);
	case 6:
		return ipv6_flow_hash(skb);
	}
	return 0;
}

#endif
