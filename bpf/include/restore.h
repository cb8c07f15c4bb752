/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_RESTORE_H
#define ROPEWALK_RESTORE_H

#include "rewrite.h"
#include "spread_maps.h"

/*
 * Port restoration on ingress, shared by tc and XDP. Gather replaces a peer's lane port by the port of its endpoint in
 * the source. A destination that is a lane port of this host becomes the listen port.
 */

/* Returns the lane ports of the peer at the packet's source address, or null. */
INLINE struct source *find_source(const struct outer *o, be16 listen_port)
{
	struct source_key key = {.listen_port = listen_port};

	outer_src(o, key.address);
	return bpf_map_lookup_elem(&sources, &key);
}

/* Returns whether the packet's source is the endpoint of a peer. */
INLINE int from_endpoint(const struct outer *o, be16 listen_port)
{
	struct peer_key key = {.port = o->udp->ports.src, .listen_port = listen_port};

	outer_src(o, key.address);
	return bpf_map_lookup_elem(&peers, &key) != 0;
}

/* The sender of a packet to a tunnel. */
struct sender {
	struct source *source; /* or null */
	be16 listen_port;
};

/* Computes the packet's ports after restoration. Returns whether they differ from its present ports. */
INLINE int restored_ports(const struct outer *o, u32 queue, u32 datagrams, struct ports *new, struct sender *from)
{
	struct local_port *local = find_local_port(o->udp->ports.dst);
	struct source *source;
	be16 listen_port;

	from->source = 0;
	if (!local)
		return 0;
	count_queue(queue, datagrams);
	if (o->fragment || bad_length(o)) {
		count(o->fragment ? EVENT_INGRESS_FRAGMENT : EVENT_INGRESS_MALFORMED, 1);
		return 0;
	}
	listen_port = local->listen_port;
	*new = o->udp->ports;
	source = find_source(o, listen_port);
	from->source = source;
	from->listen_port = listen_port;
	if (source && source->first <= host16(new->src) && host16(new->src) <= source->last)
		new->src = source->endpoint_port;
	if (new->dst.raw != listen_port.raw &&
	    (new->src.raw != o->udp->ports.src.raw || from_endpoint(o, listen_port)))
		new->dst = listen_port;
	return port_pair(*new) != port_pair(o->udp->ports);
}

INLINE void count_restored(struct ports old, struct ports new, u32 datagrams)
{
	if (old.src.raw != new.src.raw)
		count(EVENT_GATHER, datagrams);
	if (old.dst.raw != new.dst.raw)
		count(EVENT_TO_LISTEN_PORT, datagrams);
}

#endif
