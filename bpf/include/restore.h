/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_RESTORE_H
#define ROPEWALK_RESTORE_H

#include "rewrite.h"
#include "spread_maps.h"

/*
 * Port restoration on ingress, shared by tc and XDP. Gather replaces a peer's lane port by the port of its endpoint in
 * the source. A destination that is a lane port of this host becomes the listen port.
 */

/* A peer is noted as heard (answers.h) once in so many jiffies at most. */
#define NOTE_JIFFIES 100

/* The sender of a packet to a tunnel. */
struct sender {
	struct source *source; /* null if there is none, and while no note is due if the address was looked up in this jiffy before */
	be16 endpoint_port;    /* 0: it is no peer with lane ports */
	be16 listen_port;
};

INLINE int same_address(const be32 a[4], const be32 b[4])
{
	u32 differences = 0;

	for (int i = 0; i < 4; i++)
		differences |= a[i].raw ^ b[i].raw;
	return !differences;
}

INLINE struct recent_source *recent_slot(struct counters *all, const struct source_key *key)
{
	const be32 *address = key->address;
	u32 mixed = address[0].raw ^ address[1].raw ^ address[2].raw ^ address[3].raw ^ key->listen_port.raw;

	mixed *= 0x9e3779b1;
	return &all->recent[mixed >> (32 - RECENT_BITS)];
}

/* Returns whether the peer should be noted if this is one of its data messages. */
INLINE int is_note_due(const struct source *source)
{
	return source && bpf_jiffies64() - source->noted >= NOTE_JIFFIES;
}

/*
 * Returns the lane ports of the packet's source address. Packets arrive in bursts, so most have been looked up before in this
 * jiffy, and the copy costs a fifth of a lookup. Nothing needs to invalidate it, for it is not used in the next jiffy. While a note is due, there
 * is no copy: the data message to note may come right behind another message, as a probe is sent ahead of it.
 */
INLINE const struct recent_source *find_source(struct counters *all, const struct outer *o, struct sender *from)
{
	struct source_key key = {.listen_port = from->listen_port};
	struct recent_source *recent;
	u64 jiffies = bpf_jiffies64();

	outer_src(o, key.address);
	recent = recent_slot(all, &key);
	if (recent->jiffies == jiffies && recent->listen_port.raw == key.listen_port.raw && same_address(recent->address, key.address))
		return recent;
	from->source = bpf_map_lookup_elem(&sources, &key);
	*recent = (struct recent_source){.jiffies = is_note_due(from->source) ? 0 : jiffies, .listen_port = key.listen_port, .first = 1};
	__builtin_memcpy(recent->address, key.address, sizeof(recent->address));
	if (from->source) {
		recent->endpoint_port = from->source->endpoint_port;
		recent->first = from->source->first;
		recent->last = from->source->last;
	}
	return recent;
}

/* Returns whether the packet's source is the endpoint of a peer. */
INLINE int from_endpoint(const struct outer *o, be16 listen_port)
{
	struct peer_key key = {.port = o->udp->ports.src, .listen_port = listen_port};

	outer_src(o, key.address);
	return bpf_map_lookup_elem(&peers, &key) != 0;
}

/* Computes the packet's ports after restoration. Returns whether they differ from its present ports. */
INLINE int restored_ports(struct counters *all, const struct outer *o, u32 queue, u32 datagrams, struct ports *new,
			  struct sender *from)
{
	struct local_port *local = find_local_port(o->udp->ports.dst);
	const struct recent_source *source;

	from->source = 0;
	from->endpoint_port.raw = 0;
	if (!local)
		return 0;
	count_queue(queue, datagrams);
	if (o->fragment || bad_length(o)) {
		count(all, o->fragment ? EVENT_INGRESS_FRAGMENT : EVENT_INGRESS_MALFORMED, 1);
		return 0;
	}
	from->listen_port = local->listen_port;
	*new = o->udp->ports;
	source = find_source(all, o, from);
	from->endpoint_port = source->endpoint_port;
	if (source->first <= host16(new->src) && host16(new->src) <= source->last)
		new->src = source->endpoint_port;
	if (new->dst.raw != from->listen_port.raw &&
	    (new->src.raw != o->udp->ports.src.raw || from_endpoint(o, from->listen_port)))
		new->dst = from->listen_port;
	return port_pair(*new) != port_pair(o->udp->ports);
}

INLINE void count_restored(struct counters *all, struct ports old, struct ports new, u32 datagrams)
{
	if (old.src.raw != new.src.raw)
		count(all, EVENT_GATHER, datagrams);
	if (old.dst.raw != new.dst.raw)
		count(all, EVENT_TO_LISTEN_PORT, datagrams);
}

#endif
