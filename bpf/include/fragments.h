/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_FRAGMENTS_H
#define ROPEWALK_FRAGMENTS_H

#include "bpf.h"

/*
 * All fragments of a datagram have the hash of its flow, so that its packets keep their order. Only the first fragment has the
 * ports. The table remembers its hash by a key of the addresses and the identification. A fragment that comes before its first one is
 * hashed without ports. The keys are those of Fragments in pkg/protocol/packet.
 */

#define FRAGMENT_SETS 1024
#define FRAGMENT_WAYS 4

/* Datagrams whose keys begin alike. An entry is the upper half of the key above the hash; 0 is unused. */
struct fragment_set {
	u64 entries[FRAGMENT_WAYS];
	u32 next; /* the entry that is replaced next. CPUs that race for it lose a datagram, which costs its order */
	u32 unused;
};

struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, FRAGMENT_SETS);
	TYPE(key, u32);
	TYPE(value, struct fragment_set);
} fragments SEC(".maps");

/* Returns the hash of a fragment's flow. hash is that of the fragment: for the first one, with its ports. */
INLINE u32 fragment_hash(u64 key, int first, u32 hash)
{
	u32 at = key & (FRAGMENT_SETS - 1), next;
	struct fragment_set *set = bpf_map_lookup_elem(&fragments, &at);

	if (!set)
		return hash;
	next = set->next;
	if (first) {
		set->entries[next & (FRAGMENT_WAYS - 1)] = key >> 32 << 32 | hash;
		set->next = next + 1;
		return hash;
	}
#pragma unroll
	for (u32 i = 1; i <= FRAGMENT_WAYS; i++) {
		u64 entry = set->entries[(next - i) & (FRAGMENT_WAYS - 1)];

		if (entry >> 32 == key >> 32)
			return entry;
	}
	return hash;
}

#endif
