/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_LANE_H
#define ROPEWALK_LANE_H

#include "spread_maps.h"

/*
 * The choice of a flow's lane: the source port from which its messages leave. The algorithm is that of Flows and Loads in Go's package
 * spread.
 *
 * A flow entry is tick << ENTRY_TICK | tag << ENTRY_TAG | peer << ENTRY_PEER | lane: when the flow last sent a packet, the lower bits of its hash, to
 * which peer, and on which lane; 0: the entry is unused. It is live for the flowlet gap. A flow to another peer, or with another tag, has no part in a
 * live entry: it takes the lane of its slot. So no flow decides about those of others, whose balance is at worst that of a hash. A port keeps its lane while it is in the peer's list of ports (State.SetPeers), so a flow keeps its port when the list
 * changes. A load is epoch << LOAD_BITS | bytes: when it was last updated, and the bytes sent, which are halved with every epoch. A tick is 65,536 ns
 * (TICK_SHIFT), an epoch 134 ms (EPOCH_SHIFT). Two CPUs that update an entry at the same time may lose one update: a load is only an estimate, and a flow is
 * on one CPU at a time.
 */

#define TICK_SHIFT 16
#define ENTRY_PEER 8
#define ENTRY_TAG 24
#define TAG_MASK 0xff
#define ENTRY_TICK 32 /* 32 bits of time, 78 hours */
#define ENTRY_SLACK (1 << 16) /* ticks by which an entry may be newer than the clock that it is compared with */
#define EPOCH_SHIFT 27
#define EPOCH_MASK 0xffffffULL
#define LOAD_BITS 40
#define LOAD_MASK ((1ULL << LOAD_BITS) - 1)
#define LANE_BITS 8 /* as a flow entry and a candidate have it */
#define LANE_MASK 0xff

/* As a lane: the listen port. */
#define LISTEN_LANE SPREAD_LANES

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

/* Returns the lane with an index. */
INLINE struct lane *lane_at(struct peer *peer, u32 lane)
{
	/* The verifier of Linux 5.10 forgets the range of a number on the stack, but not that of a pointer. The asm hides the range that the
	 * compiler knows, or it would omit the mask. */
	__asm__ volatile("" : "+r"(lane));
	return &peer->lane[lane & (SPREAD_LANES - 1)];
}

/* Returns whether the path admits a lane: a probe was answered, and three later ones in a row were not lost (probe.h). */
INLINE int is_open(const struct peer *peer, const struct lane *l)
{
	return l->proof == peer->proof;
}

/* Returns the bytes of a packed load at an epoch. */
INLINE u64 decayed(u64 load, u64 epoch)
{
	u64 age = (epoch - (load >> LOAD_BITS)) & EPOCH_MASK;

	return ((load & LOAD_MASK) >> (age & 63)) & less_mask(age, 64);
}

/*
 * Returns the open lane with the least load, or LISTEN_LANE if none is open. Of equally loaded lanes it returns the first, counted from the
 * peer's first lane. The loop body has no branches, since the verifier would explore both sides of each in all further iterations.
 */
INLINE u32 least_loaded(const struct peer *peer, u32 lanes, u64 epoch)
{
	u64 start = peer->first % lanes, best = LOAD_MASK << LANE_BITS | LANE_MASK, none = best;

	/* Linux 5.10 needs the comparison of i with SPREAD_LANES below: see lane_at. */
	__asm__ volatile("" : "+r"(lanes));
	for (u32 i = 0; i < SPREAD_LANES && i < lanes; i++) {
		const struct lane *l = &peer->lane[i];
		u64 distance = i - start + (lanes & less_mask(i, start));
		u64 candidate = decayed(l->load, epoch) << LANE_BITS | distance;

		candidate |= less_mask(0, l->proof ^ peer->proof) & none; /* a closed one is no better than none */
		best ^= (best ^ candidate) & less_mask(candidate, best);
	}
	if (best == none)
		return LISTEN_LANE;
	start += best & LANE_MASK;
	return start < lanes ? start : start - lanes;
}

/*
 * Returns the open lane for flows without an entry, or LISTEN_LANE: that of their slot, or the next one that is open. So it changes only if the lane
 * of the slot closes or opens. The loop body has no branches but the exit: see least_loaded.
 */
INLINE u32 lane_of_slot(struct peer *peer, u32 lanes, u32 slot)
{
	u64 lane = slot % lanes;

	__asm__ volatile("" : "+r"(lanes));
	for (u32 i = 0; i < SPREAD_LANES && i < lanes; i++) {
		if (is_open(peer, lane_at(peer, lane)))
			return lane;
		lane = (lane + 1) & less_mask(lane + 1, lanes);
	}
	return LISTEN_LANE;
}

/* Returns how many ticks ago an entry was written; slightly less than 0 if it was with a newer clock. */
INLINE s64 entry_age(u64 packed, u64 tick)
{
	return (s64)(u32)(tick - (packed >> ENTRY_TICK) + ENTRY_SLACK) - ENTRY_SLACK;
}

/*
 * Returns the lane for a packet, or LISTEN_LANE, and updates the flow. flow is the flow's hash. now is in ns and changes once per jiffy
 * (monotonic), flowlet_gap is in ticks.
 */
INLINE u32 choose_lane(struct counters *cpu, struct peer *peer, u32 lanes, u32 flow, u64 now, u64 flowlet_gap)
{
	u32 key = flow >> 16, lane;
	u64 *entry = bpf_map_lookup_elem(&flows, &key), packed, next, tick = now >> TICK_SHIFT;
	u64 owner = (u64)(flow & TAG_MASK) << ENTRY_TAG | (u64)peer->number << ENTRY_PEER;
	int own;
	s64 age;

	if (!entry)
		return LISTEN_LANE;
	packed = *entry;
	age = packed ? entry_age(packed, tick) : (s64)(2 * flowlet_gap);
	own = (u32)packed >> ENTRY_PEER == owner >> ENTRY_PEER;
	if (own && age < (s64)flowlet_gap) {
		lane = packed & LANE_MASK;
	} else if (!own && age < (s64)(2 * flowlet_gap)) {
		lane = lane_of_slot(peer, lanes, key);
		if (lane == LISTEN_LANE)
			count(cpu, EVENT_UNPROVEN, 1);
		if (lane == LISTEN_LANE || age < (s64)flowlet_gap)
			return lane;
		/* The flow may have been sending while the entry was live, so it has not paused, and keeps the lane. */
	} else {
		lane = least_loaded(peer, lanes, (now >> EPOCH_SHIFT) & EPOCH_MASK);
		if (lane == LISTEN_LANE) {
			count(cpu, EVENT_UNPROVEN, 1);
			return lane;
		}
		count(cpu, packed ? EVENT_FLOW_REASSIGNED : EVENT_FLOW_NEW, 1);
	}
	/*
	 * The entry stores the lane before the modulo below: if the list of ports becomes shorter and longer again, the flow has its lane again.
	 * now changes once per jiffy, and so does the entry: CPUs contend for its cache line no more often.
	 */
	next = tick << ENTRY_TICK | owner | lane;
	if (packed != next)
		*entry = next;
	if (lane >= lanes)
		lane %= lanes;
	if (is_open(peer, lane_at(peer, lane)))
		return lane;
	count(cpu, EVENT_PORT_BLOCKED, 1);
	return LISTEN_LANE;
}

/* Adds a packet's bytes to the load of its lane. */
INLINE void add_load(struct lane *l, u64 bytes, u64 now)
{
	u64 epoch = (now >> EPOCH_SHIFT) & EPOCH_MASK;

	bytes += decayed(l->load, epoch);
	l->load = epoch << LOAD_BITS | (bytes < LOAD_MASK ? bytes : LOAD_MASK);
}

#endif
