/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_OUTER_H
#define ROPEWALK_OUTER_H

#include "bpf.h"
#include "ip.h"

/*
 * Where the UDP header of an outer packet is. No IPv6 extension header but Fragment is followed: no WireGuard sends
 * one, and a packet that has one loses nothing by keeping its ports.
 */

enum {
	ETHERNET_LEN = 14,
	VLAN_LEN = 4,
	VLAN_TAGS = 2,
};

/* EtherTypes as a little-endian load sees them. */
enum {
	ETHERTYPE_IPV4 = 0x0008,
	ETHERTYPE_IPV6 = 0xdd86,
	ETHERTYPE_VLAN = 0x0081,  /* 802.1Q */
	ETHERTYPE_SVLAN = 0xa888, /* 802.1ad */
};

/* RFC 768. */
struct udp_header {
	struct ports ports;
	be16 len;
	be16 checksum;
};

/* RFC 8200, section 4.5. */
struct ipv6_fragment {
	u8 next_header;
	u8 reserved;
	be16 offset;
	be32 id;
};

/* The first fragment has zeros here. */
#define IPV6_OFFSET 0xfff8

/* The longest headers there are up to the end of UDP's. */
#define OUTER_MAX (ETHERNET_LEN + VLAN_TAGS * VLAN_LEN + 60 + sizeof(struct udp_header))

struct outer {
	const struct ipv4_header *v4; /* or null */
	const struct ipv6_header *v6; /* or null */
	struct udp_header *udp;
	u32 at;       /* of the UDP header in the packet */
	s32 room;     /* bytes from there to the packet's end by the IP header's account; lies make it negative */
	int fragment; /* the packet is the first of several fragments */
};

enum look {
	LOOK_OTHER, /* not UDP over IP */
	LOOK_CUT,   /* the headers may go on where data_end hides them */
	LOOK_UDP,   /* what struct outer points to can be read */
};

INLINE enum look look_udp(void *data, void *end, struct outer *o)
{
	o->udp = data + o->at;
	return (void *)(o->udp + 1) > end ? LOOK_CUT : LOOK_UDP;
}

INLINE enum look look_ipv4(void *data, void *end, struct outer *o)
{
	const struct ipv4_header *ip = data + o->at;
	u32 len;

	if ((void *)(ip + 1) > end)
		return LOOK_CUT;
	len = (ip->version_ihl & 0x0f) * 4;
	if (ip->protocol != PROTO_UDP || ip->version_ihl >> 4 != 4 || len < sizeof(*ip) ||
	    host16(ip->fragment) & IPV4_OFFSET)
		return LOOK_OTHER;
	o->v4 = ip;
	o->fragment = host16(ip->fragment) & IPV4_FRAGMENT;
	o->room = (s32)host16(ip->total_len) - (s32)len;
	o->at += len;
	return look_udp(data, end, o);
}

/* Atomic fragments (RFC 6946) are left alone like all others. */
INLINE enum look look_ipv6_fragment(void *data, void *end, struct outer *o)
{
	const struct ipv6_fragment *fragment = data + o->at;

	if ((void *)(fragment + 1) > end)
		return LOOK_CUT;
	if (fragment->next_header != PROTO_UDP || host16(fragment->offset) & IPV6_OFFSET)
		return LOOK_OTHER;
	o->fragment = 1;
	o->room -= sizeof(*fragment);
	o->at += sizeof(*fragment);
	return look_udp(data, end, o);
}

INLINE enum look look_ipv6(void *data, void *end, struct outer *o)
{
	const struct ipv6_header *ip = data + o->at;

	if ((void *)(ip + 1) > end)
		return LOOK_CUT;
	if (host32(ip->version_class_label) >> 28 != 6)
		return LOOK_OTHER;
	o->v6 = ip;
	o->room = host16(ip->payload_len);
	o->at += sizeof(*ip);
	switch (ip->next_header) {
	case PROTO_UDP:
		return look_udp(data, end, o);
	case PROTO_FRAGMENT:
		return look_ipv6_fragment(data, end, o);
	}
	return LOOK_OTHER;
}

/* Of a packet without an Ethernet header. */
INLINE enum look look_ip(void *data, void *end, struct outer *o)
{
	const u8 *version = data;

	if ((void *)(version + 1) > end)
		return LOOK_CUT;
	switch (*version >> 4) {
	case 4:
		return look_ipv4(data, end, o);
	case 6:
		return look_ipv6(data, end, o);
	}
	return LOOK_OTHER;
}

INLINE enum look look_ethernet(void *data, void *end, struct outer *o)
{
	o->at = ETHERNET_LEN;
	for (int tags = 0; tags <= VLAN_TAGS; tags++) {
		const u16 *ethertype = data + o->at - sizeof(*ethertype);

		if ((void *)(ethertype + 1) > end)
			return LOOK_CUT;
		switch (*ethertype) {
		case ETHERTYPE_IPV4:
			return look_ipv4(data, end, o);
		case ETHERTYPE_IPV6:
			return look_ipv6(data, end, o);
		case ETHERTYPE_VLAN:
		case ETHERTYPE_SVLAN:
			o->at += VLAN_LEN;
			continue;
		}
		break;
	}
	return LOOK_OTHER;
}

/* Finds the UDP header of what is between data and end. */
INLINE enum look look(void *data, void *end, u8 ethernet, struct outer *o)
{
	*o = (struct outer){};
	return ethernet ? look_ethernet(data, end, o) : look_ip(data, end, o);
}

/* Finds the UDP header of a packet, wherever its bytes are. */
INLINE enum look look_skb(struct __sk_buff *skb, u8 ethernet, struct outer *o)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	enum look found = look(data, end, ethernet, o);
	u32 most = skb->len < OUTER_MAX ? skb->len : OUTER_MAX;

	if (found != LOOK_CUT || data + most <= end || bpf_skb_pull_data(skb, most))
		return found;
	return look((void *)(long)skb->data, (void *)(long)skb->data_end, ethernet, o);
}

/* Returns whether the headers contradict each other about the length. */
INLINE int outer_lies(const struct outer *o)
{
	s32 len = host16(o->udp->len);

	return len < (s32)sizeof(*o->udp) || len > o->room;
}

/* IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2). */
INLINE void map_ipv4(be32 to[4], be32 address)
{
	to[0].raw = to[1].raw = 0;
	to[2].raw = 0xffff0000;
	to[3] = address;
}

INLINE void outer_src(const struct outer *o, be32 to[4])
{
	if (o->v4)
		map_ipv4(to, o->v4->src);
	else if (o->v6)
		__builtin_memcpy(to, o->v6->src, sizeof(o->v6->src));
}

INLINE void outer_dst(const struct outer *o, be32 to[4])
{
	if (o->v4)
		map_ipv4(to, o->v4->dst);
	else if (o->v6)
		__builtin_memcpy(to, o->v6->dst, sizeof(o->v6->dst));
}

/* Both ports as one word, to compare and to sum up. */
INLINE u32 both(struct ports ports)
{
	u32 word;

	__builtin_memcpy(&word, &ports, sizeof(word));
	return word;
}

/* Puts other ports into the UDP header at that offset. Returns whether there was memory to make it writable. */
INLINE int replace_ports(struct __sk_buff *skb, u32 at, struct udp_header old, struct ports new, u64 flags)
{
	/* The correction of a checksum outweighs the ports' change in the device's sum; without one nothing does. */
	if (!old.checksum.raw)
		flags |= BPF_F_RECOMPUTE_CSUM;
	if (bpf_skb_store_bytes(skb, at, &new, sizeof(new), flags))
		return 0;
	/* The header is writable now, so that this cannot fail. */
	bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct udp_header, checksum), both(old.ports), both(new),
			    BPF_F_MARK_MANGLED_0 | sizeof(new));
	return 1;
}

/* Returns the checksum after words of what it covers were replaced (RFC 1624, equation 3). */
INLINE u16 corrected(u16 checksum, u32 from, u32 to)
{
	u64 sum = (u64)(u16)~checksum + (u32)~from + to;

	for (int i = 0; i < 3; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	checksum = ~sum;
	return checksum ? checksum : 0xffff;
}

#endif
