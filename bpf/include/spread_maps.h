/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_SPREAD_MAPS_H
#define ROPEWALK_SPREAD_MAPS_H

#include "bpf.h"
#include "echo_maps.h"
#include "spread_events.h"

/*
 * Configuration and maps of the spread and gather programs. The maps are pinned and outlive the programs. A change of
 * their layout, or of the meaning of a value, needs a new layout number in Go (pins_linux.go), which is part of the
 * pins' path.
 */
enum {
	SPREAD_PORTS = 65536,
	SPREAD_FLOWS = 65536,
	SPREAD_LANES = 64, /* per peer */
	SPREAD_PEERS = 16384,
	SPREAD_QUEUES = 256, /* receive queues with a counter; the last one also counts all further queues */
};

/* Whether packets begin with an Ethernet header. Those of TUN, WireGuard and IP tunnel devices do not. */
volatile const u8 l2 = 1;

struct settings {
	u64 flowlet_gap; /* how long a flow must be silent before it may change its lane, in ticks of 1,024 ns */
	u32 paused;	 /* messages keep the listen port */
	u32 gather;	 /* a gather program is attached, which notes the peers' answers */
};

struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct settings);
} settings SEC(".maps");

/* The tunnel to which a UDP port of this host belongs. */
struct local_port {
	be16 listen_port; /* of the tunnel, whose listen port or lane port this is; 0: no tunnel's */
	u16 unused;
	u32 mark_mask; /* for the listen port: the bits of the mark that hold the flow; 0: the flow is the skb's hash */
};

/* By port in host order. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SPREAD_PORTS);
	TYPE(key, u32);
	TYPE(value, struct local_port);
} local_ports SEC(".maps");

/* A peer's endpoint and its tunnel. IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2). */
struct peer_key {
	be32 address[4];
	be16 port;        /* of the endpoint */
	be16 listen_port; /* of the tunnel on this host */
};

/* Whether a peer answers what it gets from lane ports (answers.h). All but the counts are ticks. */
struct answers {
	u64 heard;	/* when the last data message of the peer was noted */
	u64 sent;	/* of the last spread message */
	u64 unanswered; /* of the first spread message since the peer was heard; 0: none */
	u64 held;	/* until when messages keep the listen port; 0: they do not */
	u32 messages;	/* spread since unanswered */
	u32 failures;	/* holds in a row */
};

struct peer {
	u32 lanes; /* number of valid ports; 0: messages to this peer are not spread */
	be16 ports[SPREAD_LANES];
	u32 first; /* the lane, modulo lanes, that wins among equally loaded ones */
	u64 loads[SPREAD_LANES]; /* packed, see lane.h */
	u64 fragmented; /* tick at which a message to the peer last left in fragments; 0: never */
	u32 paused;	/* messages to the peer keep the listen port */
	u32 noted;	/* gather notes the peer's messages in heard */
	struct answers answers;
	struct echo echo;
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
	be16 listen_port; /* of the tunnel on this host */
	u16 unused;
};

/* The lane ports of the peer at an address. */
struct source {
	be16 endpoint_port;
	u16 first; /* of the lane ports, in host order */
	u16 last;
	u16 unused;
	u64 noted; /* jiffies when the peer was last noted as heard */
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, SPREAD_PEERS);
	TYPE(key, struct source_key);
	TYPE(value, struct source);
} sources SEC(".maps");

/* Packed flow entries (lane.h), by the upper 16 bits of the flow. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SPREAD_FLOWS);
	TYPE(key, u32);
	TYPE(value, u64);
} flows SEC(".maps");

/* The lane ports of an address from which a CPU received, as of a jiffy; jiffies 0: the slot is invalid. */
struct recent_source {
	u64 jiffies;
	be32 address[4];
	be16 listen_port;
	be16 endpoint_port;
	u16 first;
	u16 last; /* below first: the address has no lane ports */
};

#define RECENT_BITS 3

/* The state of one CPU: event counters, and a cache of senders. Programs look it up once. */
struct counters {
	u64 events[SPREAD_EVENTS];
	struct recent_source recent[1 << RECENT_BITS]; /* by address */
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct counters);
} counters SEC(".maps");

/* Datagrams received for tunnels, by receive queue. */
struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, SPREAD_QUEUES);
	TYPE(key, u32);
	TYPE(value, u64);
} queues SEC(".maps");

/* Returns the entry of a port that belongs to a tunnel, or null. */
INLINE struct local_port *find_local_port(be16 port)
{
	u32 key = host16(port);
	struct local_port *found = bpf_map_lookup_elem(&local_ports, &key);

	return found && found->listen_port.raw ? found : 0;
}

/* Returns this CPU's counters. The map always has them, but the verifier wants to see a check for null. */
INLINE struct counters *find_counters(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&counters, &key);
}

INLINE void count(struct counters *cpu, enum spread_event event, u64 n)
{
	cpu->events[event] += n;
}

/*
 * The time at which a CPU first asked for it in a jiffy. All CPUs share it. Two that begin a jiffy together differ by the
 * time between their reads, so users compare times as signed numbers.
 *
 * CPUs may reorder the two stores or loads, so a reader may see one member of this jiffy and one of an earlier one. Then
 * sum - now is not this jiffy, since time and jiffies only grow.
 */
volatile struct {
	u64 now; /* in ns */
	u64 sum; /* now plus jiffies */
} clock;

/*
 * Returns CLOCK_MONOTONIC in nanoseconds, at most one jiffy old. Reading that clock costs as much as a lookup in a hash
 * table, reading the jiffies only a load.
 */
INLINE u64 monotonic(void)
{
	u64 jiffies = bpf_jiffies64(), now = clock.now;

	if (clock.sum - now != jiffies) {
		now = bpf_ktime_get_ns();
		clock.now = now;
		clock.sum = now + jiffies;
	}
	return now;
}

INLINE void count_queue(u32 queue, u64 n)
{
	u32 key = queue < SPREAD_QUEUES ? queue : SPREAD_QUEUES - 1;
	u64 *datagrams = bpf_map_lookup_elem(&queues, &key);

	if (datagrams)
		*datagrams += n;
}

#endif
