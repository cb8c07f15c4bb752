/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_TOOBIG_H
#define ROPEWALK_TOOBIG_H

#include "local.h"
#include "rewrite.h"
#include "spread_maps.h"

/*
 * ICMPv6 Packet Too Big about messages that were spread. The message quotes the packet with its lane port, by which the
 * kernel finds no socket, and would not learn the path MTU. So the quoted source port becomes the listen port again. No router forwards a
 * message between link-local addresses.
 *
 * Over IPv4 the kernel's WireGuard does not set Don't Fragment (send4 in drivers/net/wireguard/socket.c), so no router answers its messages with
 * Fragmentation Needed. One that quotes a message to a peer is forged, and is dropped: messages above the path MTU that it claims would leave in
 * fragments, from the listen port.
 */

enum {
	ICMP_UNREACHABLE = 3,
	ICMP_FRAGMENTATION_NEEDED = 4, /* the code */
	ICMPV6_PACKET_TOO_BIG = 2,
};

/* RFC 792 and RFC 1191. The quoted header's options, and the quoted ports, are behind it. */
struct fragmentation_needed {
	u8 type;
	u8 code;
	be16 checksum;
	be16 unused;
	be16 mtu;
	struct ipv4_header quoted;
};

INLINE int is_fragmentation_needed(const struct fragmentation_needed *m)
{
	return m->type == ICMP_UNREACHABLE && m->code == ICMP_FRAGMENTATION_NEEDED && m->quoted.protocol == PROTO_UDP;
}

/* Returns the offset of the quoted ports in the message. */
INLINE u32 quoted_ports_offset(const struct fragmentation_needed *m)
{
	return __builtin_offsetof(struct fragmentation_needed, quoted) + (m->quoted.version_ihl & 0x0f) * 4;
}

/*
 * Returns whether a quoted packet came from a tunnel of this host, and was sent to the address of one of its peers. The kernel looks at no more:
 * the tunnel's socket has no peer, and a path MTU is that of an address.
 */
INLINE int is_forged(struct counters *cpu, const struct ipv4_header *quoted, be16 port)
{
	struct local_port *local = find_local_port(port);
	struct source_key key = {};
	struct address source = {};

	if (!local)
		return 0;
	map_ipv4(source.words, quoted->src);
	if (!is_local(cpu, &source))
		return 0;
	key.listen_port = local->listen_port;
	map_ipv4(key.address, quoted->dst);
	if (!bpf_map_lookup_elem(&sources, &key))
		return 0;
	count(cpu, EVENT_FRAGMENTATION_NEEDED, 1);
	return 1;
}

/* Returns whether the ICMP message must be dropped. */
INLINE int is_forged_tc(struct counters *cpu, struct __sk_buff *skb, u32 icmp_offset)
{
	struct fragmentation_needed m;
	be16 port;

	return !bpf_skb_load_bytes(skb, icmp_offset, &m, sizeof(m)) && is_fragmentation_needed(&m) &&
	       !bpf_skb_load_bytes(skb, icmp_offset + quoted_ports_offset(&m), &port, sizeof(port)) && is_forged(cpu, &m.quoted, port);
}

INLINE int is_forged_xdp(struct counters *cpu, void *data, void *end, u32 icmp_offset)
{
	struct fragmentation_needed *m = data + icmp_offset;
	be16 *port;

	if ((void *)(m + 1) > end || !is_fragmentation_needed(m))
		return 0;
	port = (void *)m + quoted_ports_offset(m);
	return (void *)(port + 1) <= end && is_forged(cpu, &m->quoted, *port);
}

/* RFC 4443, section 3.2, about a packet without extension headers. */
struct packet_too_big {
	u8 type;
	u8 code;
	be16 checksum; /* covers the quoted packet, too */
	be32 mtu;
	struct ipv6_header quoted;
	struct ports ports;
};

/* Computes the ports with which the quoted packet left WireGuard. Returns whether they differ from the quoted ones. */
INLINE int quoted_ports(struct counters *cpu, const struct packet_too_big *m, struct ports *new)
{
	struct peer_key key = {.port = m->ports.dst};
	struct address source = {};
	struct local_port *local;

	if (m->type != ICMPV6_PACKET_TOO_BIG || m->quoted.next_header != PROTO_UDP)
		return 0;
	local = find_local_port(m->ports.src);
	if (!local || local->listen_port.raw == m->ports.src.raw)
		return 0;
	__builtin_memcpy(source.words, m->quoted.src, sizeof(source.words));
	if (!is_local(cpu, &source))
		return 0;
	key.listen_port = local->listen_port;
	__builtin_memcpy(key.address, m->quoted.dst, sizeof(key.address));
	if (!bpf_map_lookup_elem(&peers, &key))
		return 0;
	*new = m->ports;
	new->src = key.listen_port;
	return 1;
}

INLINE void restore_quoted_tc(struct counters *cpu, struct __sk_buff *skb, u32 icmp_offset)
{
	struct packet_too_big m;
	struct ports new;

	if (bpf_skb_load_bytes(skb, icmp_offset, &m, sizeof(m)) || !quoted_ports(cpu, &m, &new))
		return;
	if (bpf_skb_store_bytes(skb, icmp_offset + __builtin_offsetof(struct packet_too_big, ports), &new, sizeof(new), 0)) {
		count(cpu, EVENT_INGRESS_ERROR, 1);
		return;
	}
	bpf_l4_csum_replace(skb, icmp_offset + __builtin_offsetof(struct packet_too_big, checksum), port_pair(m.ports),
			    port_pair(new), sizeof(new));
	count(cpu, EVENT_PACKET_TOO_BIG, 1);
}

INLINE void restore_quoted_xdp(struct counters *cpu, void *data, void *end, u32 icmp_offset)
{
	struct packet_too_big *m = data + icmp_offset;
	struct ports new;

	if ((void *)(m + 1) > end || !quoted_ports(cpu, m, &new))
		return;
	m->checksum.raw = update_checksum(m->checksum.raw, port_pair(m->ports), port_pair(new));
	m->ports = new;
	count(cpu, EVENT_PACKET_TOO_BIG, 1);
}

#endif
