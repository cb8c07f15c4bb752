/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_REWRITE_H
#define ROPEWALK_REWRITE_H

#include "parse.h"

/* Replacement of UDP ports, and the update of the UDP checksum. */

/* Returns both ports as one u32, for comparison and checksums. */
INLINE u32 port_pair(struct ports ports)
{
	u32 pair;

	__builtin_memcpy(&pair, &ports, sizeof(pair));
	return pair;
}

/* Replaces the ports of the UDP header at udp_offset. Returns 1, or 0 if there is no memory to make the header writable. */
INLINE int replace_ports(struct __sk_buff *skb, u32 udp_offset, struct udp_header old, struct ports new)
{
	/*
	 * skb->csum (CHECKSUM_COMPLETE) stays valid: the changes of the ports and of the UDP checksum add up to 0. Without a UDP
	 * checksum (0) nothing cancels the change of the ports, so skb->csum must be updated.
	 */
	if (bpf_skb_store_bytes(skb, udp_offset, &new, sizeof(new), old.checksum.raw ? 0 : BPF_F_RECOMPUTE_CSUM))
		return 0;
	/*
	 * The header is writable by now, so this cannot fail. The helper leaves a checksum of 0 (BPF_F_MARK_MANGLED_0), and one
	 * over the pseudo-header alone (CHECKSUM_PARTIAL), which covers no ports: BPF_F_PSEUDO_HDR is not set.
	 */
	bpf_l4_csum_replace(skb, udp_offset + __builtin_offsetof(struct udp_header, checksum), port_pair(old.ports),
			    port_pair(new), BPF_F_MARK_MANGLED_0 | sizeof(new));
	return 1;
}

/*
 * Returns the checksum after a 32-bit field that it covers has changed (RFC 1624, equation 3). A result of 0 becomes 0xffff, since 0 means
 * no checksum (RFC 768).
 */
INLINE u16 update_checksum(u16 checksum, u32 from, u32 to)
{
	u64 sum = (u64)(u16)~checksum + (u32)~from + to;

	for (int i = 0; i < 3; i++) /* 34 bits become 19, 17 and 16 */
		sum = (sum & 0xffff) + (sum >> 16);
	checksum = ~sum;
	return checksum ? checksum : 0xffff;
}

/* Folds a one's complement sum to 16 bits. */
INLINE u16 folded(u64 sum)
{
	for (int i = 0; i < 4; i++) /* enough for 64 bits */
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/*
 * Returns the one's complement sum over the pseudo-header of a datagram of length len (RFC 768; RFC 8200, section 8.1). IPv4 addresses
 * are mapped into IPv6 (::ffff:a.b.c.d): 0xffff is 0 in one's complement, so the sum is that of the IPv4 pseudo-header, too.
 */
INLINE u64 pseudo_header_sum(const struct outer *o, be16 len)
{
	u64 sum = len.raw + (PROTO_UDP << 8); /* in network order on a little-endian machine */
	be32 src[4] = {}, dst[4] = {};

	outer_src(o, src);
	outer_dst(o, dst);
	for (int i = 0; i < 4; i++)
		sum += (u64)src[i].raw + dst[i].raw;
	return sum;
}

/*
 * Replaces the ports of a received datagram, with one helper call where possible. Returns 1, or 0 if there is no memory to make the header
 * writable. A checksum that equals the sum over the pseudo-header may be a CHECKSUM_PARTIAL one, which must stay, or a full checksum that
 * is equal by chance: only the kernel's helper knows, so replace_ports handles it. It also handles datagrams without a checksum.
 */
INLINE int replace_received_ports(struct __sk_buff *skb, const struct outer *o, struct udp_header header, struct ports new)
{
	if (!header.checksum.raw || header.checksum.raw == folded(pseudo_header_sum(o, header.len)))
		return replace_ports(skb, o->udp_offset, header, new);
	header.checksum.raw = update_checksum(header.checksum.raw, port_pair(header.ports), port_pair(new));
	header.ports = new;
	return !bpf_skb_store_bytes(skb, o->udp_offset, &header, sizeof(header), 0);
}

#endif
