/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_PROBE_MESSAGE_H
#define ROPEWALK_PROBE_MESSAGE_H

#include "rewrite.h"
#include "spread_maps.h"

/* Probes and their answers (probe.h), and how packets become them. */

/* No WireGuard message begins with these bytes, "rwp" and a version, or has the length of a probe. */
#define PROBE_MAGIC 0x01707772

enum {
	PROBE_KIND = 1,
	ANSWER_KIND = 2,
};

struct probe_message {
	u32 magic;
	u8 lane; /* of the prober; LISTEN_LANE for the listen port */
	u8 kind;
	be16 port; /* from which the probe was sent */
	u32 round;
	u32 unused;
	u64 time; /* of the prober, in nanoseconds */
	u64 secret; /* of the prober; an answer repeats it */
	u64 mac; /* SipHash-2-4 of all before it */
};

struct probe_datagram {
	struct udp_header udp;
	struct probe_message message;
};

_Static_assert(__builtin_offsetof(struct probe_message, mac) == 32, "siphash() hashes 32 bytes");

INLINE u64 probe_mac(const struct siphash_key *key, const struct probe_message *m)
{
	return siphash(key, (const u64 *)m);
}

/* Swaps two adjacent fields of the packet, of size bytes each. Evaluates to whether they could be written. */
#define SWAP(skb, at, size)                                                                                                            \
	({                                                                                                                             \
		u8 both[2 * (size)];                                                                                                   \
		!(bpf_skb_load_bytes(skb, at, both, sizeof(both)) || bpf_skb_store_bytes(skb, at, both + (size), size, 0) ||           \
		  bpf_skb_store_bytes(skb, (at) + (size), both, size, 0));                                                             \
	})

/* Returns the offset of the IP header. A packet that is no fragment has no IPv6 extension header. */
INLINE u32 ip_offset(const struct outer *o)
{
	return o->udp_offset - (o->v4 ? (o->v4->version_ihl & 0x0f) * 4 : (u32)sizeof(*o->v6));
}

/*
 * The TTL or hop limit of a probe and its answer, as Linux has it. The rest of the probe's may be too small for the way back. The message of which a
 * probe is made may be a container's, with too few for the way there.
 */
#define PROBE_HOPS 64

/* The TTL of an IPv4 header, and the protocol beside it: the checksum covers pairs of bytes. */
#define TTL_PAIR(v4) ((v4)->ttl | (v4)->protocol << 8)
#define PROBE_TTL_PAIR (PROBE_HOPS | PROTO_UDP << 8)

/* Gives the packet hops of its own. Returns whether they could be written. */
INLINE int renew_hops(struct __sk_buff *skb, u32 ip, int v4, u16 old)
{
	u16 pair = PROBE_TTL_PAIR;

	if (!v4)
		return !bpf_skb_store_bytes(skb, ip + __builtin_offsetof(struct ipv6_header, hop_limit), &pair, 1, BPF_F_RECOMPUTE_CSUM);
	return !bpf_l3_csum_replace(skb, ip + __builtin_offsetof(struct ipv4_header, checksum), old, pair, sizeof(pair)) &&
	       !bpf_skb_store_bytes(skb, ip + __builtin_offsetof(struct ipv4_header, ttl), &pair, sizeof(pair), 0);
}

/* Swaps the addresses, which changes no checksum: an answer goes to where its probe came from, with hops of its own. */
INLINE int turn_around(struct __sk_buff *skb, const struct outer *o)
{
	u32 ip = ip_offset(o);
	u16 ttl = o->v4 ? TTL_PAIR(o->v4) : 0;
	int v4 = o->v4 != 0;
	int swapped = o->v4 ? SWAP(skb, ip + __builtin_offsetof(struct ipv4_header, src), 4) :
			      SWAP(skb, ip + __builtin_offsetof(struct ipv6_header, src), 16);

	return swapped && (!l2 || SWAP(skb, 0, 6)) && renew_hops(skb, ip, v4, ttl);
}

/* Like turn_around, for XDP. The headers are within the packet. */
INLINE void turn_around_xdp(void *data, const struct outer *o)
{
	struct {
		u8 dst[6], src[6];
	} *mac = data, old_mac;
	struct ipv4_header *v4 = (struct ipv4_header *)o->v4;
	struct ipv6_header *v6 = (struct ipv6_header *)o->v6;
	be32 old[4];

	if (v4) {
		old[0] = v4->src;
		v4->src = v4->dst;
		v4->dst = old[0];
		v4->checksum.raw = update_checksum(v4->checksum.raw, TTL_PAIR(v4), PROBE_TTL_PAIR);
		v4->ttl = PROBE_HOPS;
	} else if (v6) {
		__builtin_memcpy(old, v6->src, sizeof(old));
		__builtin_memcpy(v6->src, v6->dst, sizeof(old));
		__builtin_memcpy(v6->dst, old, sizeof(old));
		v6->hop_limit = PROBE_HOPS;
	}
	if (l2) {
		__builtin_memcpy(&old_mac, mac, sizeof(old_mac));
		__builtin_memcpy(mac->dst, old_mac.src, sizeof(old_mac.src));
		__builtin_memcpy(mac->src, old_mac.dst, sizeof(old_mac.dst));
	}
}

/*
 * Sets the checksum of a datagram between the addresses of a packet, whose order does not matter. It is computed anew: XDP_TX drops the
 * state of a packet whose checksum covers only the pseudo-header (CHECKSUM_PARTIAL), as on a veth.
 */
INLINE void set_checksum(const struct outer *o, struct probe_datagram *d)
{
	d->udp.checksum.raw = 0;
	d->udp.checksum.raw = ~folded(pseudo_header_sum(o, d->udp.len) + (u32)bpf_csum_diff(0, 0, (be32 *)d, sizeof(*d), 0));
	if (!d->udp.checksum.raw)
		d->udp.checksum.raw = 0xffff;
}

/* Replaces a datagram by one of the same length. Returns whether it could be written. */
INLINE int replace_datagram(struct __sk_buff *skb, u32 udp, struct probe_datagram *old, struct probe_datagram *new)
{
	u32 checksum = udp + __builtin_offsetof(struct udp_header, checksum);
	s64 difference = bpf_csum_diff((be32 *)old, sizeof(*old), (be32 *)new, sizeof(*new), 0);

	if (bpf_skb_store_bytes(skb, udp, new, sizeof(*new), 0))
		return 0;
	bpf_l4_csum_replace(skb, checksum, 0, difference, BPF_F_MARK_MANGLED_0);
	return 1;
}

/*
 * Returns whether the checksum covers only the pseudo-header (CHECKSUM_PARTIAL), by a change with bpf_l4_csum_replace, which leaves such a
 * checksum alone. The caller must write the checksum afterwards.
 */
INLINE int is_partial(struct __sk_buff *skb, u32 at, be16 checksum)
{
	u16 after;

	return !bpf_l4_csum_replace(skb, at, 0, 1, 0) && !bpf_skb_load_bytes(skb, at, &after, sizeof(after)) && after == checksum.raw;
}

/* Writes the length of an IP packet. Returns whether it could be written. */
INLINE int set_ip_length(struct __sk_buff *skb, u32 at, int v4, be16 from, be16 to)
{
	if (!v4)
		return !bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct ipv6_header, payload_len), &to, sizeof(to), 0);
	return !bpf_l3_csum_replace(skb, at + __builtin_offsetof(struct ipv4_header, checksum), from.raw, to.raw, sizeof(to)) &&
	       !bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct ipv4_header, total_len), &to, sizeof(to), 0);
}

/* Replaces the packet's datagram by another one, of any length, with hops of its own. Returns whether it could be written. */
INLINE int resize_datagram(struct __sk_buff *skb, const struct outer *o, struct probe_datagram *new)
{
	u32 udp = o->udp_offset, ip = ip_offset(o), checksum = udp + __builtin_offsetof(struct udp_header, checksum);
	be16 was = o->udp->checksum, from = o->v4 ? o->v4->total_len : new->udp.len, to = new->udp.len;
	u64 sum = pseudo_header_sum(o, to);
	u16 ttl = o->v4 ? TTL_PAIR(o->v4) : 0;
	int v4 = o->v4 != 0;

	if (v4)
		to.raw = __builtin_bswap16(udp - ip + sizeof(*new));
	if (bpf_skb_change_tail(skb, udp + sizeof(*new), 0))
		return 0;
	if (is_partial(skb, checksum, was)) {
		new->udp.checksum.raw = folded(sum);
	} else {
		sum += bpf_csum_diff(0, 0, (be32 *)new, sizeof(*new), 0);
		new->udp.checksum.raw = ~folded(sum);
		if (!new->udp.checksum.raw)
			new->udp.checksum.raw = 0xffff;
	}
	return !bpf_skb_store_bytes(skb, udp, new, sizeof(*new), 0) && set_ip_length(skb, ip, v4, from, to) && renew_hops(skb, ip, v4, ttl);
}

#endif
