/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_FLOW_HASH_H
#define ROPEWALK_FLOW_HASH_H

#include "bpf.h"
#include "fragments.h"
#include "ip.h"
#include "mix.h"

/*
 * The hash of an inner flow, by which steer.bpf.c chooses the TUN queue. It equals that of Fragments.FlowHash in pkg/protocol/packet. It
 * is symmetric: both directions of a flow have the same hash.
 */

/* A packet's flow. The addresses are those of IPv4, shifted by the width of a port, or hashes of those of IPv6. */
struct flow {
	u64 src;
	u64 dst;
	struct transport t;
};

/* Returns whether the packet is valid. If not, flow must not be used. */
INLINE int load_ipv4_flow(struct __sk_buff *skb, struct flow *flow)
{
	struct ipv4_header ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || !ipv4_transport(skb, &ip, &flow->t))
		return 0;
	flow->src = (u64)host32(ip.src) << 16;
	flow->dst = (u64)host32(ip.dst) << 16;
	return 1;
}

INLINE int load_ipv6_flow(struct __sk_buff *skb, struct flow *flow)
{
	struct ipv6_header ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || !ipv6_transport(skb, &ip, &flow->t))
		return 0;
	flow->src = mix(host64(ip.src[0])) + host64(ip.src[1]);
	flow->dst = mix(host64(ip.dst[0])) + host64(ip.dst[1]);
	return 1;
}

INLINE int load_flow(struct __sk_buff *skb, struct flow *flow)
{
	u8 version;

	if (bpf_skb_load_bytes(skb, 0, &version, sizeof(version)))
		return 0;
	switch (version >> 4) {
	case 4:
		return load_ipv4_flow(skb, flow);
	case 6:
		return load_ipv6_flow(skb, flow);
	}
	return 0;
}

/* Returns the ports. Both are 0 in later fragments, in truncated packets, and for all other protocols. */
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

/* Returns the hash of the packet's flow, or 0 if it is not a valid IP packet. The packet begins with its IP header. */
INLINE u32 flow_hash(struct __sk_buff *skb)
{
	struct ports ports;
	struct flow flow = {}; /* without CAP_PERFMON the verifier refuses reads of an unset stack on any branch */
	u32 hash;

	if (!load_flow(skb, &flow))
		return 0;
	ports = load_ports(skb, &flow.t);
	/* The sum makes the hash symmetric. */
	hash = mix(mix(flow.src + host16(ports.src)) + mix(flow.dst + host16(ports.dst)) + flow.t.protocol) >> 32;
	if (!flow.t.fragment)
		return hash;
	return fragment_hash(mix(mix(flow.src) + flow.dst + flow.t.id), flow.t.first, hash);
}

#endif
