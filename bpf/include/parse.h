/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_PARSE_H
#define ROPEWALK_PARSE_H

#include "bpf.h"
#include "ip.h"

/*
 * Parser for outer packets: Ethernet, VLAN, IPv4 or IPv6, UDP. Fragment is the only IPv6 extension header it follows.
 * No WireGuard implementation sends others, and a packet that has one only keeps its ports.
 */

enum {
	ETHERNET_LEN = 14,
	VLAN_LEN = 4,
	VLAN_TAGS = 2,
};

/* EtherTypes as a little-endian load reads them. */
enum {
	ETHERTYPE_IPV4 = 0x0008,
	ETHERTYPE_IPV6 = 0xdd86,
	ETHERTYPE_VLAN = 0x0081,  /* 802.1Q */
	ETHERTYPE_SVLAN = 0xa888, /* 802.1ad */
};

/* The VLAN's number in a tag, as a little-endian load reads it. A tag with number 0 has a priority alone. */
#define VLAN_NUMBER 0xff0f

/* RFC 768. */
struct udp_header {
	struct ports ports;
	be16 len;
	be16 checksum;
};

/* The greatest length of all headers, up to the end of the UDP header. */
#define OUTER_MAX (ETHERNET_LEN + VLAN_TAGS * VLAN_LEN + 60 + sizeof(struct udp_header))
#define OUTER_MASK 0x7f /* has all bits of an offset below OUTER_MAX */

struct outer {
	const struct ipv4_header *v4; /* or null */
	const struct ipv6_header *v6; /* or null */
	struct udp_header *udp;       /* null unless the result is UDP_FOUND */
	u32 udp_offset;
	s32 ip_room;  /* bytes from the UDP header to the packet's end by the IP header; negative if the IP header is invalid */
	int fragment; /* the packet is the first of several fragments */
};

enum parse_result {
	NOT_UDP,           /* not UDP over IP */
	HEADERS_NONLINEAR, /* the headers may continue behind data_end, in the packet's non-linear part */
	UDP_FOUND,         /* the pointers of struct outer can be read */
	ICMP_FOUND,        /* an ICMP message begins at udp_offset, or the first fragment of one */
	ICMPV6_FOUND,      /* an ICMPv6 message begins at udp_offset */
	TOO_MANY_TAGS,     /* more VLAN tags than VLAN_TAGS, of which the first VLAN_TAGS are looked at */
};

INLINE enum parse_result parse_udp(void *data, void *end, struct outer *o)
{
	struct udp_header *udp;
	u64 at = o->udp_offset;

	/* Linux 5.15 and older forget the value of a 32-bit register on the stack. So the compiler must not know that this changes nothing. */
	__asm__ volatile("" : "+r"(at));
	udp = data + (at & OUTER_MASK);
	if ((void *)(udp + 1) > end)
		return HEADERS_NONLINEAR;
	__asm__ volatile("" : "+r"(udp)); /* for the same reason callers must look at the pointer, which is not forgotten */
	o->udp = udp;
	return UDP_FOUND;
}

INLINE enum parse_result parse_ipv4(void *data, void *end, struct outer *o)
{
	const struct ipv4_header *ip = data + o->udp_offset;
	u32 len;

	if ((void *)(ip + 1) > end)
		return HEADERS_NONLINEAR;
	len = (ip->version_ihl & 0x0f) * 4;
	if (ip->version_ihl >> 4 != 4 || len < sizeof(*ip) || host16(ip->fragment) & IPV4_OFFSET)
		return NOT_UDP;
	o->v4 = ip;
	o->fragment = host16(ip->fragment) & IPV4_FRAGMENT;
	o->ip_room = (s32)host16(ip->total_len) - (s32)len;
	o->udp_offset += len;
	switch (ip->protocol) {
	case PROTO_UDP:
		return parse_udp(data, end, o);
	case PROTO_ICMP:
		return ICMP_FOUND;
	}
	return NOT_UDP;
}

/* Atomic fragments (RFC 6946) count as fragments too. */
INLINE enum parse_result parse_ipv6_fragment(void *data, void *end, struct outer *o)
{
	const struct ipv6_fragment *fragment = data + o->udp_offset;

	if ((void *)(fragment + 1) > end)
		return HEADERS_NONLINEAR;
	if (fragment->next_header != PROTO_UDP || host16(fragment->offset) & IPV6_OFFSET)
		return NOT_UDP;
	o->fragment = 1;
	o->ip_room -= sizeof(*fragment);
	o->udp_offset += sizeof(*fragment);
	return parse_udp(data, end, o);
}

INLINE enum parse_result parse_ipv6(void *data, void *end, struct outer *o)
{
	const struct ipv6_header *ip = data + o->udp_offset;

	if ((void *)(ip + 1) > end)
		return HEADERS_NONLINEAR;
	if (host32(ip->version_class_label) >> 28 != 6)
		return NOT_UDP;
	o->v6 = ip;
	o->ip_room = host16(ip->payload_len);
	o->udp_offset += sizeof(*ip);
	switch (ip->next_header) {
	case PROTO_UDP:
		return parse_udp(data, end, o);
	case PROTO_FRAGMENT:
		return parse_ipv6_fragment(data, end, o);
	case PROTO_ICMPV6:
		return ICMPV6_FOUND;
	}
	return NOT_UDP;
}

/* Parses a packet that begins with its IP header. */
INLINE enum parse_result parse_ip(void *data, void *end, struct outer *o)
{
	const u8 *version = data;

	if ((void *)(version + 1) > end)
		return HEADERS_NONLINEAR;
	switch (*version >> 4) {
	case 4:
		return parse_ipv4(data, end, o);
	case 6:
		return parse_ipv6(data, end, o);
	}
	return NOT_UDP;
}

INLINE enum parse_result parse_ethernet(void *data, void *end, u8 vlans, struct outer *o)
{
	o->udp_offset = ETHERNET_LEN;
	for (int tags = 0; tags <= VLAN_TAGS; tags++) {
		const u16 *ethertype = data + o->udp_offset - sizeof(*ethertype);

		if ((void *)(ethertype + 1) > end)
			return HEADERS_NONLINEAR;
		if (!vlans && tags && ethertype[-1] & VLAN_NUMBER)
			return NOT_UDP;
		switch (*ethertype) {
		case ETHERTYPE_IPV4:
			return parse_ipv4(data, end, o);
		case ETHERTYPE_IPV6:
			return parse_ipv6(data, end, o);
		case ETHERTYPE_VLAN:
		case ETHERTYPE_SVLAN:
			o->udp_offset += VLAN_LEN;
			continue;
		}
		return NOT_UDP;
	}
	return TOO_MANY_TAGS;
}

/*
 * Finds the UDP header between data and end. udp_offset serves as the parser's cursor until then. vlans: also in packets of VLANs. Otherwise
 * these are left to the VLAN's device.
 */
INLINE enum parse_result parse_outer(void *data, void *end, u8 ethernet, u8 vlans, struct outer *o)
{
	*o = (struct outer){};
	return ethernet ? parse_ethernet(data, end, vlans, o) : parse_ip(data, end, o);
}

/*
 * Finds the UDP header of an skb that belongs to no VLAN, of which it may have the tag outside of its data. Pulls the headers into the linear part
 * if they are not there.
 */
INLINE enum parse_result parse_skb(struct __sk_buff *skb, u8 ethernet, struct outer *o)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u32 most = skb->len < OUTER_MAX ? skb->len : OUTER_MAX;
	enum parse_result result;

	*o = (struct outer){};
	if (skb->vlan_present && skb->vlan_tci & 0xfff)
		return NOT_UDP;
	result = parse_outer(data, end, ethernet, 0, o);
	if (result != HEADERS_NONLINEAR || data + most <= end || bpf_skb_pull_data(skb, most))
		return result;
	return parse_outer((void *)(long)skb->data, (void *)(long)skb->data_end, ethernet, 0, o);
}

/* Returns whether the UDP length is invalid: below the header's size, or beyond the end of the IP packet, unless that is a fragment. */
INLINE int bad_length(const struct outer *o)
{
	s32 len = host16(o->udp->len);

	return len < (s32)sizeof(*o->udp) || (len > o->ip_room && !o->fragment);
}

/* Maps an IPv4 address into IPv6 (RFC 4291, section 2.5.5.2). */
INLINE void map_ipv4(be32 to[4], be32 address)
{
	to[0].raw = to[1].raw = 0;
	to[2].raw = 0xffff0000;
	to[3] = address;
}

INLINE void outer_src(const struct outer *o, be32 to[4])
{
	const struct ipv4_header *v4 = o->v4;
	const struct ipv6_header *v6 = o->v6;

	__asm__ volatile("" : "+r"(v4), "+r"(v6)); /* the pointers must be looked at: see parse_udp */
	if (v4)
		map_ipv4(to, v4->src);
	else if (v6)
		__builtin_memcpy(to, v6->src, sizeof(v6->src));
}

INLINE void outer_dst(const struct outer *o, be32 to[4])
{
	const struct ipv4_header *v4 = o->v4;
	const struct ipv6_header *v6 = o->v6;

	__asm__ volatile("" : "+r"(v4), "+r"(v6)); /* the pointers must be looked at: see parse_udp */
	if (v4)
		map_ipv4(to, v4->dst);
	else if (v6)
		__builtin_memcpy(to, v6->dst, sizeof(v6->dst));
}

#endif
