// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * guard: counts packets for pods of another node that leave this one beside the tunnel, and in the
 * strict state drops them.
 *
 * guard_ethernet and guard_ip (tc egress of the devices by which packets leave the node) look up
 * the destination. guard_tunnel (tc egress of the tunnel) looks up the source. Without CAP_PERFMON
 * the verifier refuses pointers into the packet, and follows loops in speculative execution without
 * end: there are neither. The maps are pinned. A change of their layout needs a new layout number
 * in Go (guard.go).
 */

#include "include/bpf.h"
#include "include/guard_classes.h"
#include "include/ip.h"
#include "include/parse.h"

enum {
	GUARD_PREFIXES = 1 << 17,
	GUARD_LINEAR = 64, /* an IPv6 header behind the longest one of a device, of 24 bytes (IPoIB) */
};

struct guard_prefix {
	u32 bits;    /* of version and address */
	u32 version; /* 4 or 6 */
	u8 address[16];
} __attribute__((aligned(8)));

/* Eight bytes of a struct guard_prefix. */
typedef u64 __attribute__((may_alias)) word;

#define GUARD_ALL_BITS (8 * (sizeof(struct guard_prefix) - sizeof(u32)))

/* enum guard_class by prefix. */
struct {
	UINT(type, BPF_MAP_TYPE_LPM_TRIE);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, GUARD_PREFIXES);
	TYPE(key, struct guard_prefix);
	TYPE(value, u32);
} guard_prefixes SEC(".maps");

/* Whether packets to GUARD_REMOTE and GUARD_UNKNOWN are dropped. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u32);
} guard_strict SEC(".maps");

/* Packets of one class. */
struct guard_count {
	u64 passed;
	u64 dropped;
	u64 at; /* when the last one was counted, in nanoseconds of CLOCK_MONOTONIC */
	u32 ifindex;
	struct guard_prefix last; /* its address that was looked up */
};

/* By enum guard_class: first what left beside the tunnel, then what entered the tunnel. */
struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 2 * GUARD_CLASSES);
	TYPE(key, u32);
	TYPE(value, struct guard_count);
} guard_counts SEC(".maps");

/* Reads at an offset from the Ethernet header, or else from the network header. Returns 0, or an error. */
INLINE long load(struct __sk_buff *skb, int ethernet, u32 offset, void *to, u32 len)
{
	if (ethernet)
		return bpf_skb_load_bytes(skb, offset, to, len);
	if (!bpf_skb_load_bytes_relative(skb, offset, to, len, BPF_HDR_START_NET))
		return 0;
	if (bpf_skb_pull_data(skb, skb->len < GUARD_LINEAR ? skb->len : GUARD_LINEAR))
		return -1;
	return bpf_skb_load_bytes_relative(skb, offset, to, len, BPF_HDR_START_NET);
}

/*
 * Reads the address at at4 or at6 in the IP header at offset. Returns whether there is one.
 *
 * Without CAP_PERFMON the verifier of some kernels takes a number that was stored on the stack for a
 * spilled register, and refuses a later write to a part of its 8 bytes. So all stores to the stack are
 * of 8 bytes, and helpers write only where nothing was stored.
 */
INLINE int load_address(struct __sk_buff *skb, int ethernet, u32 offset, u32 at4, u32 at6, struct guard_prefix *p)
{
	word *words = (word *)p;
	u8 first;
	u32 v4;

	if (load(skb, ethernet, offset, &first, sizeof(first)))
		return 0;
	if (first >> 4 == 4) {
		if (load(skb, ethernet, offset + at4, &v4, sizeof(v4)))
			return 0;
		words[1] = v4;
		words[2] = 0;
	} else if (first >> 4 != 6 || load(skb, ethernet, offset + at6, p->address, sizeof(p->address))) {
		return 0;
	}
	words[0] = (u64)(first >> 4) << 32 | GUARD_ALL_BITS;
	return 1;
}

INLINE u32 find_class(const struct guard_prefix *p)
{
	u32 *class = bpf_map_lookup_elem(&guard_prefixes, p);

	return class ? *class : GUARD_NONE;
}

INLINE int is_strict(void)
{
	u64 key = 0;
	u32 *strict = bpf_map_lookup_elem(&guard_strict, &key);

	return strict && *strict;
}

/* Counts a packet, or each of a train. */
INLINE void count_packet(const struct __sk_buff *skb, u64 key, int drop, const struct guard_prefix *p)
{
	struct guard_count *c = bpf_map_lookup_elem(&guard_counts, &key);
	u32 packets = skb->gso_segs ? skb->gso_segs : 1;

	if (!c)
		return;
	c->passed += drop ? 0 : packets;
	c->dropped += drop ? packets : 0;
	c->at = bpf_ktime_get_ns();
	c->ifindex = skb->ifindex;
	c->last = *p;
}

INLINE int check_destination(struct __sk_buff *skb, int ethernet, u32 offset)
{
	struct guard_prefix p;
	u32 class;
	int drop;

	if (!load_address(skb, ethernet, offset, __builtin_offsetof(struct ipv4_header, dst),
			  __builtin_offsetof(struct ipv6_header, dst), &p))
		return TCX_NEXT;
	class = find_class(&p);
	if (class == GUARD_NONE)
		return TCX_NEXT;
	drop = (class == GUARD_REMOTE || class == GUARD_UNKNOWN) && is_strict();
	count_packet(skb, class, drop, &p);
	return drop ? TCX_DROP : TCX_NEXT;
}

/* Returns the EtherType in front of offset, or 0. */
INLINE u16 load_ethertype(struct __sk_buff *skb, u32 offset)
{
	u16 type;

	return bpf_skb_load_bytes(skb, offset - sizeof(type), &type, sizeof(type)) ? 0 : type;
}

INLINE int is_tag(u16 ethertype)
{
	return ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_SVLAN;
}

SEC("tc")
int guard_ethernet(struct __sk_buff *skb)
{
	u32 offset = ETHERNET_LEN;
	u16 type = load_ethertype(skb, offset);

	if (is_tag(type))
		type = load_ethertype(skb, offset += VLAN_LEN);
	if (is_tag(type))
		type = load_ethertype(skb, offset += VLAN_LEN);
	return type == ETHERTYPE_IPV4 || type == ETHERTYPE_IPV6 ? check_destination(skb, 1, offset) : TCX_NEXT;
}

SEC("tc")
int guard_ip(struct __sk_buff *skb)
{
	return check_destination(skb, 0, 0);
}

SEC("tc")
int guard_tunnel(struct __sk_buff *skb)
{
	struct guard_prefix p;

	if (load_address(skb, 0, 0, __builtin_offsetof(struct ipv4_header, src),
			 __builtin_offsetof(struct ipv6_header, src), &p))
		count_packet(skb, GUARD_CLASSES + find_class(&p), 0, &p);
	return TCX_NEXT;
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
