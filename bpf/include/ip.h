/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_IP_H
#define ROPEWALK_IP_H

#include "bpf.h"

/*
 * Finds the transport header of an inner IP packet. It must agree with Length and FindTransport of Go's package packet on
 * every packet, also on malformed ones.
 */

/* IANA protocol numbers. */
enum {
	PROTO_HOPOPTS = 0,
	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_ICMPV6 = 58,
	PROTO_NONE = 59,
	PROTO_DSTOPTS = 60,
	PROTO_SCTP = 132,
};

/* RFC 791, section 3.1. */
struct ipv4_header {
	u8 version_ihl;
	u8 tos;
	be16 total_len;
	be16 id;
	be16 fragment;
	u8 ttl;
	u8 protocol;
	be16 checksum;
	be32 src;
	be32 dst;
};

/* More Fragments and the fragment offset. Both are zero only in an unfragmented packet. */
#define IPV4_FRAGMENT 0x3fff
#define IPV4_OFFSET 0x1fff

/* RFC 8200, section 3. */
struct ipv6_header {
	be32 version_class_label;
	be16 payload_len;
	u8 next_header;
	u8 hop_limit;
	be64 src[2];
	be64 dst[2];
};

/* The first bytes of each extension header that can be skipped (RFC 8200, section 4). */
struct ipv6_extension {
	u8 next_header;
	u8 len; /* in 8 bytes, without the first 8 */
};

/* RFC 8200, section 4.5. */
struct ipv6_fragment {
	u8 next_header;
	u8 reserved;
	be16 offset;
	be32 id;
};

/* Mask of the fragment offset. It is zero in the first fragment. */
#define IPV6_OFFSET 0xfff8

/* The first bytes of the TCP, UDP and SCTP headers. */
struct ports {
	be16 src;
	be16 dst;
};

/* Bounds the walk over extension headers. RFC 8200, section 4.1, allows seven in a packet. */
#define IPV6_MAX_EXTENSIONS 8

/* The position of the transport header. Offsets are in bytes from the start of the IP header. */
struct transport {
	u32 offset;
	u32 end;     /* of the packet, by its IP header */
	u64 id;      /* of a fragment's datagram, among those of its hosts; IPv4: with the protocol (RFC 791, section 3.2) */
	u8 protocol; /* of a later fragment: the same in all later fragments of the datagram */
	u8 found;    /* whether the transport header is at offset: not in later fragments */
	u8 fragment; /* whether the packet is one */
	u8 first;    /* whether it is the first one of its datagram */
};

/* Returns whether the IP header's lengths are valid. If not, t must not be used. */
INLINE int ipv4_transport(struct __sk_buff *skb, const struct ipv4_header *ip, struct transport *t)
{
	t->offset = (ip->version_ihl & 0x0f) * 4;
	t->end = host16(ip->total_len);
	t->protocol = ip->protocol;
	t->found = t->first = (host16(ip->fragment) & IPV4_OFFSET) == 0;
	t->fragment = (host16(ip->fragment) & IPV4_FRAGMENT) != 0;
	t->id = (u64)ip->protocol << 48 | host16(ip->id);
	return t->offset >= sizeof(*ip) && t->offset <= t->end && t->end <= skb->len;
}

/* Returns whether the parser skips this extension header. */
INLINE int ipv6_skippable(u8 protocol)
{
	return protocol == PROTO_HOPOPTS || protocol == PROTO_ROUTING || protocol == PROTO_DSTOPTS;
}

/* Moves t past the extension header at its offset. If that is outside the packet, it returns 0 and t is unchanged. */
INLINE int ipv6_skip(struct __sk_buff *skb, struct transport *t)
{
	struct ipv6_extension extension;
	u32 left = t->end - t->offset, size;

	if (bpf_skb_load_bytes(skb, t->offset, &extension, sizeof(extension)))
		return 0;
	size = 8 + 8 * (u32)extension.len;
	if (size > left)
		return 0;
	t->protocol = extension.next_header;
	t->offset += size;
	return 1;
}

/* Moves t past the extension headers that the parser skips. */
INLINE void ipv6_skip_extensions(struct __sk_buff *skb, struct transport *t)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < IPV6_MAX_EXTENSIONS && !t->found; i++) {
		if (!ipv6_skippable(t->protocol))
			t->found = 1;
		else if (!ipv6_skip(skb, t))
			break;
	}
}

/* Moves t past the fragment header at its offset, and what else the parser skips in the first fragment of a datagram. */
INLINE void ipv6_skip_fragment(struct __sk_buff *skb, struct transport *t)
{
	struct ipv6_fragment header;

	t->found = 0;
	if (t->end - t->offset < sizeof(header)) {
		if (t->offset < t->end)
			bpf_skb_load_bytes(skb, t->offset, &t->protocol, sizeof(t->protocol));
		return;
	}
	if (bpf_skb_load_bytes(skb, t->offset, &header, sizeof(header)))
		return;
	t->protocol = header.next_header;
	t->fragment = 1;
	t->id = host32(header.id);
	t->first = (host16(header.offset) & IPV6_OFFSET) == 0;
	if (!t->first)
		return;
	t->offset += sizeof(header);
	ipv6_skip_extensions(skb, t);
}

/* Returns whether the IP header's length is valid. If not, t must not be used. */
INLINE int ipv6_transport(struct __sk_buff *skb, const struct ipv6_header *ip, struct transport *t)
{
	t->offset = sizeof(*ip);
	t->end = sizeof(*ip) + host16(ip->payload_len);
	t->protocol = ip->next_header;
	t->found = t->fragment = t->first = 0;
	if (t->end > skb->len)
		return 0;
	ipv6_skip_extensions(skb, t);
	if (t->found && t->protocol == PROTO_FRAGMENT)
		ipv6_skip_fragment(skb, t);
	return 1;
}

#endif
