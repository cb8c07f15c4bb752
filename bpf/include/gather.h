/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_GATHER_H
#define ROPEWALK_GATHER_H

#include "outer.h"
#include "spread_maps.h"

/* What tc and XDP do alike for packets that come in. */

/* Returns the peer at the packet's source address, if it has lane ports. */
INLINE const struct source *find_source(const struct outer *o, be16 tunnel)
{
	struct source_key key = {.tunnel = tunnel};

	outer_src(o, key.address);
	return bpf_map_lookup_elem(&sources, &key);
}

/* Returns whether a peer's canonical endpoint is the packet's source. */
INLINE int from_peer(const struct outer *o, be16 tunnel)
{
	struct peer_key key = {.port = o->udp->ports.src, .tunnel = tunnel};

	outer_src(o, key.address);
	return bpf_map_lookup_elem(&peers, &key) != 0;
}

/* Returns whether the packet is to have other ports than it has, and puts them into new. */
INLINE int gather(const struct outer *o, u32 queue, u32 datagrams, struct ports *new)
{
	struct local_port *local = find_port(o->udp->ports.dst);
	const struct source *source;
	be16 tunnel;

	if (!local)
		return 0;
	count_queue(queue, datagrams);
	if (o->fragment || outer_lies(o)) {
		count(o->fragment ? EVENT_GATHER_FRAGMENT : EVENT_GATHER_MALFORMED, 1);
		return 0;
	}
	tunnel = local->canonical;
	*new = o->udp->ports;
	source = find_source(o, tunnel);
	if (source && source->first <= host16(new->src) && host16(new->src) <= source->last)
		new->src = source->canonical;
	if (new->dst.raw != tunnel.raw && (new->src.raw != o->udp->ports.src.raw || from_peer(o, tunnel)))
		new->dst = tunnel;
	return both(*new) != both(o->udp->ports);
}

INLINE void count_gathered(struct ports old, struct ports new, u32 datagrams)
{
	if (old.src.raw != new.src.raw)
		count(EVENT_GATHER_SOURCE, datagrams);
	if (old.dst.raw != new.dst.raw)
		count(EVENT_GATHER_DESTINATION, datagrams);
}

#endif
