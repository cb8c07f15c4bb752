/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_LANE_H
#define ROPEWALK_LANE_H

#include "spread_maps.h"

/*
 * The choice of a flow's lane. The algorithm is that of Flows and Loads in Go's package spread.
 *
 * A flow entry packs the tick of the flow's last packet above LANE_BITS of lane; 0: the entry is unused. A load packs the
 * epoch of its last update above LOAD_BITS of bytes. The bytes are halved with every epoch. Two CPUs that update an entry
 * at the same time may lose one update: a load is only an estimate, and a flow is on one CPU at a time.
 */

#define TICK_SHIFT 10
#define EPOCH_SHIFT 27
#define EPOCH_MASK 0xffffffULL
#define LOAD_BITS 40
#define LOAD_MASK ((1ULL << LOAD_BITS) - 1)
#define LANE_BITS 8
#define LANE_MASK 0xff

/*
 * Returns all ones if a < b, else 0. Both must be below 2^63. The asm hides the comparison from the compiler, which would
 * emit a branch.
 */
INLINE u64 less_mask(u64 a, u64 b)
{
	s64 difference = a - b;

	__asm__ volatile("" : "+r"(difference));
	return difference >> 63;
}

/* Returns the bytes of a packed load at an epoch. */
INLINE u64 decayed(u64 load, u64 epoch)
{
	u64 age = (epoch - (load >> LOAD_BITS)) & EPOCH_MASK;

	return ((load & LOAD_MASK) >> (age & 63)) & less_mask(age, 64);
}

/*
 * Returns the lane with the least load. Of equally loaded lanes it returns the first, counted from the peer's first lane.
 * The loop body has no branches, since the verifier would explore both sides of each in all further iterations.
 */
INLINE u32 least_loaded(const struct peer *peer, u32 lanes, u64 epoch)
{
	u64 start = peer->first % lanes, best = LOAD_MASK << LANE_BITS | LANE_MASK;

	/* Hides the range from the compiler, which would else omit the first comparison below. Linux 5.10 needs that comparison: its
	 * verifier forgets the range of a number on the stack. */
	__asm__ volatile("" : "+r"(lanes));
	for (u32 i = 0; i < SPREAD_LANES && i < lanes; i++) {
		u64 distance = i - start + (lanes & less_mask(i, start));
		u64 candidate = decayed(peer->loads[i], epoch) << LANE_BITS | distance;

		best ^= (best ^ candidate) & less_mask(candidate, best);
	}
	start += best & LANE_MASK;
	return start < lanes ? start : start - lanes;
}

/* Returns the lane for a packet, and updates the flow and the load. flow is the flow's hash, lanes at least 1, now in ns. */
INLINE u32 choose_lane(struct counters *all, struct peer *peer, u32 lanes, u32 flow, u64 bytes, u64 now, u64 flowlet_gap)
{
	u32 key = flow >> 16, lane;
	u64 *entry = bpf_map_lookup_elem(&flows, &key), *load, packed;
	u64 tick = now >> TICK_SHIFT, epoch = (now >> EPOCH_SHIFT) & EPOCH_MASK;

	if (!entry)
		return 0;
	packed = *entry;
	if (packed && (s64)(tick - (packed >> LANE_BITS)) < (s64)flowlet_gap) {
		lane = packed & LANE_MASK;
	} else {
		count(all, packed ? EVENT_FLOW_REASSIGNED : EVENT_FLOW_NEW, 1);
		lane = least_loaded(peer, lanes, epoch);
	}
	/*
	 * The entry stores the lane before the modulo below: a flow to a peer with fewer lanes may share it, and must not move
	 * the other flows. now changes once per jiffy, so CPUs do not write the entry, and contend for its line, more often.
	 */
	if (packed != (tick << LANE_BITS | lane))
		*entry = tick << LANE_BITS | lane;
	lane %= lanes;
	/* Hides the range from the compiler, which would else omit the mask below that the verifier needs. */
	__asm__ volatile("" : "+r"(lane));
	load = &peer->loads[lane & (SPREAD_LANES - 1)];
	bytes += decayed(*load, epoch);
	*load = epoch << LOAD_BITS | (bytes < LOAD_MASK ? bytes : LOAD_MASK);
	return lane;
}

#endif
