/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_CLASSIFY_MAPS_H
#define ROPEWALK_CLASSIFY_MAPS_H

#include "bpf.h"
#include "classify_events.h"
#include "drop_reasons.h"

/* Configuration and maps of the classify program. Nothing is pinned: all ends with the process that loaded it. */
enum {
	CLASSIFY_QUEUES = 256, /* packets of further receive queues go up the stack */
	CLASSIFY_ADDRESSES = 65536, /* kube-proxy with IPVS makes each Service an address of the host */
	CLASSIFY_INDICES = 65536,
	CLASSIFY_SOURCES = 16384,
	CLASSIFY_SOURCE_PORTS = 255,
};

/* In host order. */
volatile const u16 listen_port;

/* The longest frame that a socket accepts, in bytes from the Ethernet header on. */
volatile const u32 max_frame = 0xffffffff;

/* Whether only data messages with a receiver index of the indices map go to sockets. */
volatile const u8 check_indices;

/*
 * Rate limits (ratelimit.h): emission interval and tolerance in nanoseconds. An interval of 0 is no limit. source: of each source,
 * total: of each limit that the sources share on a CPU.
 */
volatile const u64 source_interval;
volatile const u64 source_tolerance;
volatile const u64 total_interval;
volatile const u64 total_tolerance;

/*
 * Bloom filters of sources that sent initiations (recent_senders.h): the time of one filter in nanoseconds, the number of
 * its blocks, and the secret seed of the hash.
 */
volatile const u64 sender_interval;
volatile const u32 sender_blocks;
volatile const u64 sender_seed;

/* IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2). */
struct address {
	be32 words[4];
};

/* Addresses of this host. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_ADDRESSES);
	TYPE(key, struct address);
	TYPE(value, u8);
} addresses SEC(".maps");

/* AF_XDP sockets by receive queue. */
struct {
	UINT(type, BPF_MAP_TYPE_XSKMAP);
	UINT(max_entries, CLASSIFY_QUEUES);
	TYPE(key, u32);
	TYPE(value, u32);
} xsks SEC(".maps");

/* Receiver indices of this host's sessions and handshakes. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_INDICES);
	TYPE(key, u32);
	TYPE(value, u8);
} indices SEC(".maps");

/* TATs (ratelimit.h) of sources that sent initiations. The least recently used are evicted. */
struct {
	UINT(type, BPF_MAP_TYPE_LRU_HASH);
	UINT(max_entries, CLASSIFY_SOURCES);
	TYPE(key, struct address);
	TYPE(value, u64);
} sources SEC(".maps");

#define SENDER_FILTERS 3

/* The ports, in host order, from which the tunnel sends besides its listen port. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_SOURCE_PORTS);
	TYPE(key, u32);
	TYPE(value, u8);
} source_ports SEC(".maps");

/* A block of a Bloom filter, as large as a cache line. */
struct sender_block {
	u64 words[8];
};

/* The blocks of the first filter, of the second and of the third. Go multiplies max_entries by the blocks of a filter. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SENDER_FILTERS);
	TYPE(key, u32);
	TYPE(value, struct sender_block);
} senders SEC(".maps");

/* TATs of peers' sources: configured endpoints, and the sources of their last authenticated messages. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_SOURCES);
	TYPE(key, struct address);
	TYPE(value, u64);
} peer_sources SEC(".maps");

/* A UDP endpoint. IPv4 addresses are mapped into IPv6. */
struct endpoint {
	struct address address;
	be16 port;
	u16 unused;
};

/* The peers' endpoints: the configured ones, and the sources of their last authenticated messages. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_SOURCES);
	TYPE(key, struct endpoint);
	TYPE(value, u8);
} endpoints SEC(".maps");

/* Rate limits that many sources share on one CPU. */
enum {
	LIMIT_NO_MAC2,  /* sources that are not peers': first initiations without mac2 */
	LIMIT_REPEATED, /* sources that are not peers': further initiations without mac2 (recent_senders.h) */
	LIMIT_MAC2,     /* sources that are not peers': initiations with mac2 */
	LIMIT_PEERS,    /* peers' sources: initiations beyond the source's own limit */
	LIMITS,
};

struct cpu_limits {
	u64 tat[LIMITS];
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct cpu_limits);
} cpu_limits SEC(".maps");

struct counters {
	u64 events[CLASSIFY_EVENTS];
	u64 drops[DROP_REASONS];
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct counters);
} counters SEC(".maps");

INLINE struct counters *cpu_counters(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&counters, &key);
}

/* Counts the packet and lets it go up the stack. */
INLINE int pass(enum classify_event event)
{
	struct counters *cpu = cpu_counters();

	if (cpu)
		cpu->events[event]++;
	return XDP_PASS;
}

/* Counts a packet that was redirected to a socket. */
INLINE int redirected(enum classify_event event)
{
	pass(event);
	return XDP_REDIRECT;
}

INLINE int drop(enum drop_reason reason)
{
	struct counters *cpu = cpu_counters();

	if (cpu)
		cpu->drops[reason]++;
	return XDP_DROP;
}

#endif
