/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_CLASSIFY_MAPS_H
#define ROPEWALK_CLASSIFY_MAPS_H

#include "bpf.h"
#include "classify_events.h"
#include "drop_reasons.h"

/* Configuration and state of classify. Nothing of it is pinned: it ends with the process that loaded it. */
enum {
	CLASSIFY_QUEUES = 256, /* what comes on later ones goes up the stack */
	CLASSIFY_PLACES = 256,
	CLASSIFY_ADDRESSES = 1024,
	CLASSIFY_INDICES = 65536,
	CLASSIFY_SOURCES = 16384,
};

/* The canonical port, and the range of those of lanes, where only the guard works. All in host order. */
volatile const u16 port;
volatile const u16 first_lane = 1;
volatile const u16 last_lane;

/* The longest frame that a socket takes, from its Ethernet header on. */
volatile const u32 max_frame = 0xffffffff;

/* Whether sockets take frames of several buffers. Needs Linux 5.18 to load. */
volatile const u8 frags;

/* Whether data messages must name an index of the map of indices. */
volatile const u8 check_indices;

/* Over how many places of cpu_at flows are spread where their queue has no socket; 0: over none. */
volatile const u32 places;
volatile const u16 cpu_at[CLASSIFY_PLACES];

/* Whether the device's packets may have their checksum left to it, as those from a veth's other end. */
volatile const u8 unsummed;

/* See guard.h. Nanoseconds; an interval of 0 is no limit. */
volatile const u64 source_interval;
volatile const u64 source_tolerance;
volatile const u64 total_interval;
volatile const u64 total_tolerance;

/* IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2). */
struct address {
	be32 words[4];
};

/* This host's. */
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

/* By the CPU's number, of which Go says how many there can be. The value is the length of its queue in frames. */
struct {
	UINT(type, BPF_MAP_TYPE_CPUMAP);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u32);
} cpus SEC(".maps");

/* Receiver indices of this host's sessions and handshakes. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_INDICES);
	TYPE(key, u32);
	TYPE(value, u8);
} indices SEC(".maps");

/* Words of guard.h by source: whoever sends initiations, the longest silent of whom are forgotten, */
struct {
	UINT(type, BPF_MAP_TYPE_LRU_HASH);
	UINT(max_entries, CLASSIFY_SOURCES);
	TYPE(key, struct address);
	TYPE(value, u64);
} sources SEC(".maps");

/* and those that peers were last heard from. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, CLASSIFY_SOURCES);
	TYPE(key, struct address);
	TYPE(value, u64);
} known SEC(".maps");

/* Words of guard.h of many sources together. */
enum {
	TOTAL_BARE,   /* of those not in known: without a cookie, */
	TOTAL_COOKIE, /* and with what may be one */
	TOTAL_KNOWN,  /* of those in known: beyond their own budgets */
	TOTALS,
};

struct total {
	u64 words[TOTALS];
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct total);
} totals SEC(".maps");

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

INLINE struct counters *own_counters(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&counters, &key);
}

/* Counts the packet, which goes up the stack. */
INLINE int pass(enum classify_event event)
{
	struct counters *all = own_counters();

	if (all)
		all->events[event]++;
	return XDP_PASS;
}

/* Counts the packet, which is for a socket or CPU. */
INLINE int redirected(enum classify_event event)
{
	pass(event);
	return XDP_REDIRECT;
}

INLINE int drop(enum drop_reason reason)
{
	struct counters *all = own_counters();

	if (all)
		all->drops[reason]++;
	return XDP_DROP;
}

#endif
