/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_LOCAL_H
#define ROPEWALK_LOCAL_H

#include "parse.h"
#include "spread_maps.h"

/*
 * Whose packets these are. A device also carries packets of others, which may have the same ports: containers, forwarded hosts. Spread
 * changes what this host's WireGuard sends, and gather what is sent to this host.
 */

INLINE int same_address(const be32 a[4], const be32 b[4])
{
	u32 differences = 0;

	for (int i = 0; i < 4; i++)
		differences |= a[i].raw ^ b[i].raw;
	return !differences;
}

INLINE int is_link_local(const be32 a[4])
{
	return (a[0].raw & 0xc0ff) == 0x80fe;
}

/* Adds the zone to a link-local address. A link is the same for all packets of a device: those of VLANs are left to the VLAN's device. */
INLINE void add_zone(be32 a[4])
{
	if (is_link_local(a))
		a[1].raw = device;
}

INLINE void source_of(const struct outer *o, be32 to[4])
{
	outer_src(o, to);
	if (o->v6)
		add_zone(to);
}

INLINE void destination_of(const struct outer *o, be32 to[4])
{
	outer_dst(o, to);
	if (o->v6)
		add_zone(to);
}

/*
 * Returns whether an address belongs to this host. Nearly all packets have the same one, so a CPU keeps the last one for a jiffy, and
 * needs no lookup for it until then.
 */
INLINE int is_local(struct counters *cpu, const struct address *a)
{
	u64 jiffies = bpf_jiffies64();

	if (cpu->local.jiffies == jiffies && same_address(cpu->local.words, a->words))
		return 1;
	if (!bpf_map_lookup_elem(&addresses, a))
		return 0;
	cpu->local.jiffies = jiffies;
	__builtin_memcpy(cpu->local.words, a->words, sizeof(a->words));
	return 1;
}

/*
 * Returns whether this host sent the packet, and did not forward it. The kernel's WireGuard makes its messages of packets that may have been
 * forwarded, but clears the index of the device on which they arrived (wg_reset_packet, skb_scrub_packet). Containers on a macvlan or ipvlan
 * device send to the device below it without being forwarded: their addresses are not this host's.
 */
INLINE int is_own(struct counters *cpu, const struct __sk_buff *skb, const struct outer *o)
{
	struct address source = {};

	if (skb->ingress_ifindex)
		return 0;
	source_of(o, source.words);
	return is_local(cpu, &source);
}

/* Returns whether the packet is sent to this host. */
INLINE int is_to_us(struct counters *cpu, const struct outer *o)
{
	struct address destination = {};

	destination_of(o, destination.words);
	return is_local(cpu, &destination);
}

#endif
