/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_LANE_H
#define ROPEWALK_LANE_H

#include "spread_maps.h"

/*
 * The lane of a flow: the twin of Flows and Loads in Go's pkg/spread, where it is defined.
 *
 * A flow's word is when it was last seen, in ticks, above LANE_BITS of lane; 0 for never. A load's word is the epoch of
 * its last change above LOAD_BITS of bytes, which are halved with every epoch. CPUs that change a word at the same time
 * may lose one of the changes: a load is an estimate, and a flow is on one CPU at a time.
 */

#define TICK_SHIFT 10
#define EPOCH_SHIFT 27
#define EPOCH_MASK 0xffffffULL
#define LOAD_BITS 40
#define LOAD_MASK ((1ULL << LOAD_BITS) - 1)
#define LANE_BITS 8
#define LANE_MASK 0xff

/*
 * Returns all ones if a < b, else 0; both are below 2^63. The compiler must not see that this is a comparison: it would
 * branch.
 */
INLINE u64 below(u64 a, u64 b)
{
	s64 difference = a - b;

	__asm__ volatile("" : "+r"(difference));
	return difference >> 63;
}

INLINE u64 decayed(u64 word, u64 epoch)
{
	u64 age = (epoch - (word >> LOAD_BITS)) & EPOCH_MASK;

	return ((word & LOAD_MASK) >> (age & 63)) & below(age, 64);
}

/*
 * Returns the lane with the least load; of equals the first, counted from the peer's first lane. Without a branch but
 * the loop's: the verifier would follow both sides of each through all the rounds to come.
 */
INLINE u32 least_loaded(const struct peer *peer, u32 lanes, u64 epoch)
{
	u64 start = peer->first % lanes, best = LOAD_MASK << LANE_BITS | LANE_MASK;

	for (u32 i = 0; i < SPREAD_LANES && i < lanes; i++) {
		u64 distance = i - start + (lanes & below(i, start));
		u64 candidate = decayed(peer->loads[i], epoch) << LANE_BITS | distance;

		best ^= (best ^ candidate) & below(candidate, best);
	}
	start += best & LANE_MASK;
	return start < lanes ? start : start - lanes;
}

/* Returns the lane that bytes of the flow leave on now. There is at least one lane. */
INLINE u32 choose_lane(struct peer *peer, u32 lanes, u32 flow, u64 bytes)
{
	u32 key = flow >> 16, lane;
	u64 *seen = bpf_map_lookup_elem(&flows, &key), *load, word;
	u64 now = bpf_ktime_get_ns(), tick = now >> TICK_SHIFT, epoch = (now >> EPOCH_SHIFT) & EPOCH_MASK;

	if (!seen)
		return 0;
	word = *seen;
	if (word && (s64)(tick - (word >> LANE_BITS)) < (s64)gap) {
		lane = word & LANE_MASK;
	} else {
		count(word ? EVENT_FLOW_AGAIN : EVENT_FLOW_NEW, 1);
		lane = least_loaded(peer, lanes, epoch);
	}
	/* As it is: flows towards peers with fewer lanes share the entry, and none may move the others. */
	*seen = tick << LANE_BITS | lane;
	lane %= lanes;
	__asm__ volatile("" : "+r"(lane)); /* or the compiler would know it to be in bounds, and the verifier would not */
	load = &peer->loads[lane & (SPREAD_LANES - 1)];
	bytes += decayed(*load, epoch);
	*load = epoch << LOAD_BITS | (bytes < LOAD_MASK ? bytes : LOAD_MASK);
	return lane;
}

#endif
