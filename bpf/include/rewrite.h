/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_REWRITE_H
#define ROPEWALK_REWRITE_H

#include "parse.h"

/* Rewriting of UDP ports, with the checksum's update. */

/* Returns both ports as one u32, for comparison and checksums. */
INLINE u32 port_pair(struct ports ports)
{
	u32 pair;

	__builtin_memcpy(&pair, &ports, sizeof(pair));
	return pair;
}

/* Replaces the ports of the UDP header at that offset. Returns 0 if there was no memory to make the header writable. */
INLINE int replace_ports(struct __sk_buff *skb, u32 udp_offset, struct udp_header old, struct ports new, u64 flags)
{
	/*
	 * The updated checksum cancels the changed ports in the device's sum (CHECKSUM_COMPLETE). Without a checksum
	 * nothing cancels them, and the sum must be updated.
	 */
	if (!old.checksum.raw)
		flags |= BPF_F_RECOMPUTE_CSUM;
	if (bpf_skb_store_bytes(skb, udp_offset, &new, sizeof(new), flags))
		return 0;
	/* The header is writable by now, so this cannot fail. */
	bpf_l4_csum_replace(skb, udp_offset + __builtin_offsetof(struct udp_header, checksum), port_pair(old.ports),
			    port_pair(new), BPF_F_MARK_MANGLED_0 | sizeof(new));
	return 1;
}

/* Returns the checksum after 32 of the bits that it covers changed (RFC 1624, equation 3). */
INLINE u16 update_checksum(u16 checksum, u32 from, u32 to)
{
	u64 sum = (u64)(u16)~checksum + (u32)~from + to;

	for (int i = 0; i < 3; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	checksum = ~sum;
	return checksum ? checksum : 0xffff;
}

/* Returns a sum of 16-bit words, folded into one. */
INLINE u16 folded(u64 sum)
{
	for (int i = 0; i < 4; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/*
 * Returns the sum over the pseudo-header of a datagram of that length (RFC 768; RFC 8200, section 8.1). The bits that map IPv4 into
 * IPv6 add a zero.
 */
INLINE u64 pseudo_header_sum(const struct outer *o, be16 len)
{
	u64 sum = len.raw + (PROTO_UDP << 8);
	be32 src[4] = {}, dst[4] = {};

	outer_src(o, src);
	outer_dst(o, dst);
	for (int i = 0; i < 4; i++)
		sum += (u64)src[i].raw + dst[i].raw;
	return sum;
}

/*
 * Replaces the ports of a received datagram. Returns 0 if there was no memory to make the header writable. A checksum that covers
 * only the pseudo-header (CHECKSUM_PARTIAL) equals its sum and must stay. So one that equals it is left to the kernel's helper,
 * which can tell both cases apart. All others are updated here, which saves a helper call.
 */
INLINE int restore_ports(struct __sk_buff *skb, const struct outer *o, struct udp_header header, struct ports new)
{
	if (!header.checksum.raw || header.checksum.raw == folded(pseudo_header_sum(o, header.len)))
		return replace_ports(skb, o->udp_offset, header, new, 0);
	header.checksum.raw = update_checksum(header.checksum.raw, port_pair(header.ports), port_pair(new));
	header.ports = new;
	return !bpf_skb_store_bytes(skb, o->udp_offset, &header, sizeof(header), 0);
}

#endif
