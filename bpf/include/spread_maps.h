/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_SPREAD_MAPS_H
#define ROPEWALK_SPREAD_MAPS_H

#include "bpf.h"
#include "spread_events.h"

/*
 * Configuration and state of spread and gather. The maps are pinned and outlive the programs: a change of their layout,
 * or of what a value means, needs another layout number in pkg/datapath, by which pins are kept apart.
 */
enum {
	SPREAD_PORTS = 65536,
	SPREAD_FLOWS = 65536,
	SPREAD_LANES = 64, /* of one peer */
	SPREAD_PEERS = 16384,
	SPREAD_QUEUES = 256, /* counted apart; what comes from later ones counts as the last */
};

/* Whether packets begin with an Ethernet header. Those of TUN, WireGuard and IP tunnels do not. */
volatile const u8 l2 = 1;

/* How long a flow must have been silent to take another lane, in ticks of 1,024 ns. */
volatile const u64 gap = 488281;

/* What one of this host's UDP ports has to do with a tunnel. */
struct local_port {
	be16 canonical; /* the tunnel's listen port, for that port itself and its lane ports; 0: the port is not ours */
	u16 unused;
	u32 mark_mask; /* of the listen port: the bits of the mark that hold the flow; 0: the flow is the hash */
};

/* By the port in host order. All the maps' memory but that of peers is taken when they are made. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SPREAD_PORTS);
	TYPE(key, u32);
	TYPE(value, struct local_port);
} local_ports SEC(".maps");

/* One endpoint of a tunnel's peer. IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2). */
struct peer_key {
	be32 address[4];
	be16 port;   /* the peer's canonical port */
	be16 tunnel; /* this host's */
};

struct peer {
	u32 lanes; /* how many ports there are; 0: nothing is spread */
	be16 ports[SPREAD_LANES];
	u32 first; /* the lane that is taken first, modulo lanes */
	u64 loads[SPREAD_LANES]; /* see lane.h */
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, SPREAD_PEERS);
	TYPE(key, struct peer_key);
	TYPE(value, struct peer);
} peers SEC(".maps");

struct source_key {
	be32 address[4];
	be16 tunnel; /* this host's */
	u16 unused;
};

/* The lane ports of the peer at an address. */
struct source {
	be16 canonical;
	u16 first; /* in host order */
	u16 last;
	u16 unused;
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, SPREAD_PEERS);
	TYPE(key, struct source_key);
	TYPE(value, struct source);
} sources SEC(".maps");

/* By the upper 16 bits of the flow. See lane.h. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SPREAD_FLOWS);
	TYPE(key, u32);
	TYPE(value, u64);
} flows SEC(".maps");

struct counters {
	u64 events[SPREAD_EVENTS];
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct counters);
} counters SEC(".maps");

/* Datagrams that came in for a tunnel, by receive queue. */
struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, SPREAD_QUEUES);
	TYPE(key, u32);
	TYPE(value, u64);
} queues SEC(".maps");

INLINE struct local_port *find_port(be16 port)
{
	u32 key = host16(port);
	struct local_port *found = bpf_map_lookup_elem(&local_ports, &key);

	return found && found->canonical.raw ? found : 0;
}

INLINE void count(enum spread_event event, u64 n)
{
	u32 key = 0;
	struct counters *all = bpf_map_lookup_elem(&counters, &key);

	if (all)
		all->events[event] += n;
}

INLINE void count_queue(u32 queue, u64 n)
{
	u32 key = queue < SPREAD_QUEUES ? queue : SPREAD_QUEUES - 1;
	u64 *datagrams = bpf_map_lookup_elem(&queues, &key);

	if (datagrams)
		*datagrams += n;
}

#endif
