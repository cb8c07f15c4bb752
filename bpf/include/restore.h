/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_RESTORE_H
#define ROPEWALK_RESTORE_H

#include "local.h"
#include "rewrite.h"
#include "spread_maps.h"

/*
 * Port restoration on ingress, shared by tc and XDP. Gather replaces a source port that is a peer's lane port by the port of the peer's
 * endpoint. A port is one only after a probe from it: a NAT may give such a port to a peer that does not spread, and has no mapping for another. In packets of proven peers it also replaces a destination port that is a lane port of this host by the listen port. A router may have
 * fragmented the packet: its first fragment has the ports and the checksum of the whole datagram, so it is handled in the same way.
 */

/* The sender of a packet to a tunnel. */
struct sender {
	be16 endpoint_port; /* 0: the source port is neither the endpoint's nor a lane port of a peer */
	be16 listen_port;   /* of the tunnel */
};

/*
 * How long heard ports count after the last probe, in nanoseconds: 9.2 minutes. A peer in use sends a probe every PROBE_IDLE, if it has credit, and before
 * its first message after a pause. Two may be lost. Of a peer that is gone, a NAT may give the ports to another.
 */
#define HEARD_TIME (1LL << 39)

INLINE int is_in_range(const struct recent_source *s, u16 port)
{
	return s->first <= port && port <= s->last;
}

INLINE int is_heard(const struct recent_source *s, u16 port)
{
	return s->heard[port % HEARD_PORTS / 64] >> port % 64 & 1;
}

/* Returns the slot of the CPU's cache for an address and tunnel, chosen by a multiplicative hash. */
INLINE struct recent_source *recent_slot(struct counters *cpu, const struct source_key *key)
{
	const be32 *address = key->address;
	u32 hash = address[0].raw ^ address[1].raw ^ address[2].raw ^ address[3].raw ^ key->listen_port.raw;

	hash *= 0x9e3779b1;
	return &cpu->recent[hash >> (32 - RECENT_BITS)];
}

/*
 * Returns the lane ports of the packet's source address, from the CPU's cache or else from the map. Packets arrive in bursts, so most
 * addresses were looked up in the same jiffy before, and a cache hit costs a fifth of a lookup. A slot is valid for one jiffy, so nothing
 * must invalidate it. Exception: the probe from a lane port may have arrived in this jiffy. heard: the port is a lane port.
 */
INLINE const struct recent_source *find_source(struct counters *cpu, const struct outer *o, be16 listen_port, u16 port, int *heard)
{
	struct source_key key = {.listen_port = listen_port};
	struct recent_source *recent;
	struct source *source;
	u64 jiffies = bpf_jiffies64();

	source_of(o, key.address);
	recent = recent_slot(cpu, &key);
	if (recent->jiffies == jiffies && recent->listen_port.raw == key.listen_port.raw && same_address(recent->address, key.address)) {
		*heard = is_in_range(recent, port);
		if (!*heard || is_heard(recent, port))
			return recent;
	}
	source = bpf_map_lookup_elem(&sources, &key);
	*recent = (struct recent_source){.jiffies = jiffies, .listen_port = listen_port, .first = 1}; /* above last: no lane ports */
	__builtin_memcpy(recent->address, key.address, sizeof(recent->address));
	if (source) {
		recent->endpoint_port = source->endpoint_port;
		recent->first = source->first;
		recent->last = source->last;
		recent->proved = source->proved;
		if ((s64)(bpf_ktime_get_ns() - source->heard_at) < HEARD_TIME)
			__builtin_memcpy(recent->heard, source->heard, sizeof(recent->heard));
	}
	*heard = is_in_range(recent, port) && is_heard(recent, port);
	return recent;
}

/*
 * Computes the packet's ports after restoration, and the sender. Returns whether the ports differ from the present ones: if not, new may be
 * unset. Only what a peer sends that has answered probes goes from a lane port to the listen port: it alone may have learned a lane port. So nothing
 * of a third party does, which answers a container whose source port the host kept, also if a peer claims the third party's address.
 */
INLINE int compute_ports(struct counters *cpu, const struct outer *o, u32 queue, u32 datagrams, struct ports *new,
			  struct sender *from)
{
	struct local_port *local = find_local_port(o->udp->ports.dst);
	const struct recent_source *recent;
	u16 port = host16(o->udp->ports.src);
	int heard;

	from->endpoint_port.raw = 0;
	if (!local || !is_to_us(cpu, o))
		return 0;
	count_queue(queue, datagrams);
	if (bad_length(o)) {
		count(cpu, EVENT_INGRESS_MALFORMED, 1);
		return 0;
	}
	from->listen_port = local->listen_port;
	*new = o->udp->ports;
	recent = find_source(cpu, o, from->listen_port, port, &heard);
	if (new->dst.raw != from->listen_port.raw && !recent->proved)
		return 0;
	if (new->src.raw != recent->endpoint_port.raw && !heard && !is_in_range(recent, port))
		return 0;
	from->endpoint_port = recent->endpoint_port;
	new->dst = from->listen_port;
	if (heard)
		new->src = recent->endpoint_port;
	return port_pair(*new) != port_pair(o->udp->ports);
}

INLINE void count_restored(struct counters *cpu, struct ports old, struct ports new, u32 datagrams)
{
	if (old.src.raw != new.src.raw)
		count(cpu, EVENT_GATHER, datagrams);
	if (old.dst.raw != new.dst.raw)
		count(cpu, EVENT_TO_LISTEN_PORT, datagrams);
}

#endif
