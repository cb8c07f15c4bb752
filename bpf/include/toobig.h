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
 * Fragmentation Needed. But the kernel keeps one path MTU for each address, and believes errors about any packet to a peer. An error about an Echo
 * Reply, or about a packet from an open UDP port, needs no secret to be believed. Then messages above that path MTU leave in fragments, from the listen
 * port. So errors about packets to peers are dropped. For TCP and SCTP the kernel checks the sequence number or the tag, so they pass.
 *
 * The kernel believes an error on whichever device it arrives: a peer can send one through its tunnel, and a container by its veth. So filter_errors runs on
 * the devices without a gather program. Tunnels inside each other need no exception over IPv4: the outer packets of each have no Don't Fragment.
 *
 * Over IPv6 a router may send Packet Too Big about a message, so the gather programs let it pass. On a device with the filter no message to a peer leaves, so
 * filter_errors drops it. The kernel believes it whatever source the quoted packet has (ip6_update_pmtu), and behind any extension headers.
 */

enum {
	ICMP_UNREACHABLE = 3,
	ICMP_FRAGMENTATION_NEEDED = 4, /* the code */
	ICMPV6_PACKET_TOO_BIG = 2,
};

/* RFC 792 and RFC 1191. The quoted header may have options, and a part of the packet behind it. */
struct fragmentation_needed {
	u8 type;
	u8 code;
	be16 checksum;
	be16 unused;
	be16 mtu;
	struct ipv4_header quoted;
};

#define ICMP_LEN __builtin_offsetof(struct fragmentation_needed, quoted)

INLINE int is_fragmentation_needed(const struct fragmentation_needed *m)
{
	return m->type == ICMP_UNREACHABLE && m->code == ICMP_FRAGMENTATION_NEEDED;
}

/*
 * Returns whether the kernel may take an address for one of this host. In a quote it takes 0.0.0.0 for its own address, and with route_localnet
 * 127.0.0.1 is one.
 */
INLINE int is_ours(struct counters *cpu, be32 a)
{
	struct address address = {};
	u8 network = a.raw;

	map_ipv4(address.words, a);
	return network == 0 || network == 127 || is_local(cpu, &address);
}

/* Returns whether the address of key is that of a peer of any tunnel. */
INLINE int is_peer(struct source_key *key)
{
	u32 zero = 0;
	const struct settings *set = bpf_map_lookup_elem(&settings, &zero);

	if (!set)
		return 0;
#pragma clang loop unroll(full)
	for (int i = 0; i < SPREAD_TUNNELS; i++) {
		key->listen_port = set->tunnels[i];
		if (!key->listen_port.raw)
			return 0;
		if (bpf_map_lookup_elem(&sources, key))
			return 1;
	}
	return 0;
}

/* Returns whether the kernel checks errors about packets of a protocol. */
INLINE int is_checked(u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_SCTP;
}

/* Returns whether an error about a packet must be dropped. */
INLINE int is_forged(struct counters *cpu, const struct ipv4_header *quoted)
{
	struct source_key to = {};

	map_ipv4(to.address, quoted->dst);
	if (is_checked(quoted->protocol) || !is_ours(cpu, quoted->src) || !is_peer(&to))
		return 0;
	count(cpu, EVENT_FRAGMENTATION_NEEDED, 1);
	return 1;
}

/*
 * Returns whether the first fragment of an error must be dropped. It need not show what the error is about: the kernel ignores its last bytes if they
 * are no multiple of 8. No router fragments errors, which have 576 bytes at most (RFC 1812, section 4.3.2.3).
 */
INLINE int is_forged_fragment(struct counters *cpu, const struct outer *o)
{
	const struct ipv4_header *v4 = o->v4;

	__asm__ volatile("" : "+r"(v4)); /* the pointer must be looked at: see parse_udp */
	if (!v4 || !is_ours(cpu, v4->dst))
		return 0;
	count(cpu, EVENT_FRAGMENTATION_NEEDED, 1);
	return 1;
}

/*
 * Returns whether the frame must be dropped, since its VLAN tags hide what it carries. The kernel removes any number of tags of VLAN 0
 * (__netif_receive_skb_core), and believes an error behind them. No honest sender needs more than one.
 */
INLINE int hides_in_tags(struct counters *cpu, enum parse_result found)
{
	if (found != TOO_MANY_TAGS)
		return 0;
	count(cpu, EVENT_TOO_MANY_TAGS, 1);
	return 1;
}

/* Returns whether the packet must be dropped. */
INLINE int is_forged_tc(struct counters *cpu, struct __sk_buff *skb, enum parse_result found, const struct outer *o)
{
	struct fragmentation_needed m;

	if (hides_in_tags(cpu, found))
		return 1;
	if (found != ICMP_FOUND || bpf_skb_load_bytes(skb, o->udp_offset, &m, ICMP_LEN) || !is_fragmentation_needed(&m))
		return 0;
	if (o->fragment)
		return is_forged_fragment(cpu, o);
	return !bpf_skb_load_bytes(skb, o->udp_offset, &m, sizeof(m)) && is_forged(cpu, &m.quoted);
}

INLINE int is_forged_xdp(struct counters *cpu, void *data, void *end, enum parse_result found, const struct outer *o)
{
	struct fragmentation_needed *m = data + o->udp_offset;

	if (hides_in_tags(cpu, found))
		return 1;
	if (found != ICMP_FOUND || (void *)m + ICMP_LEN > end || !is_fragmentation_needed(m))
		return 0;
	if (o->fragment)
		return is_forged_fragment(cpu, o);
	return (void *)(m + 1) <= end && is_forged(cpu, &m->quoted);
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

/*
 * Moves to the message behind the extension headers, which the kernel takes in any number and order, and returns its protocol. Of later fragments it returns
 * PROTO_NONE.
 */
INLINE u8 skip_extensions(struct __sk_buff *skb, struct outer *o, u8 protocol)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < IPV6_MAX_EXTENSIONS; i++) {
		struct ipv6_fragment header; /* another extension header has its length at reserved */

		if (protocol != PROTO_FRAGMENT && !ipv6_skippable(protocol))
			break;
		if (bpf_skb_load_bytes(skb, o->udp_offset, &header, sizeof(header)))
			return PROTO_NONE;
		o->udp_offset += sizeof(header);
		if (protocol != PROTO_FRAGMENT)
			o->udp_offset += 8 * (u32)header.reserved;
		else if (host16(header.offset) & IPV6_OFFSET)
			return PROTO_NONE;
		else
			o->fragment = 1;
		protocol = header.next_header;
	}
	return protocol;
}

/*
 * Returns whether a packet must be dropped, since it is a Packet Too Big about a packet to a peer, or may be one: a fragment, or behind more extension headers
 * than are looked at. No router sends such ones, nor one about a packet to a link-local address. In fragments the first has the type (RFC 7112).
 */
INLINE int is_forged_too_big(struct counters *cpu, struct __sk_buff *skb, enum parse_result found, struct outer *o)
{
	struct packet_too_big m;
	struct address destination = {};
	struct source_key to = {};
	int icmp;
	u8 protocol;

	if (found != ICMPV6_FOUND && (found != NOT_UDP || !o->v6))
		return 0;
	destination_of(o, destination.words);
	protocol = skip_extensions(skb, o, o->v6->next_header);
	icmp = protocol == PROTO_ICMPV6;
	if (icmp && (bpf_skb_load_bytes(skb, o->udp_offset, &m, ICMP_LEN) || m.type != ICMPV6_PACKET_TOO_BIG))
		return 0;
	if (!icmp && protocol != PROTO_FRAGMENT && !ipv6_skippable(protocol))
		return 0;
	if ((destination.words[0].raw & 0xff) != 0xff && !is_local(cpu, &destination)) /* the kernel takes it from a multicast group, too */
		return 0;
	if (icmp && !o->fragment) {
		if (bpf_skb_load_bytes(skb, o->udp_offset, &m, __builtin_offsetof(struct packet_too_big, ports)))
			return 0;
		__builtin_memcpy(to.address, m.quoted.dst, sizeof(to.address));
		if (is_checked(m.quoted.next_header) || (!is_link_local(to.address) && !is_peer(&to)))
			return 0;
	}
	count(cpu, EVENT_FRAGMENTATION_NEEDED, 1);
	return 1;
}

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
