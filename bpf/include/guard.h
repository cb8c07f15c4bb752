/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_GUARD_H
#define ROPEWALK_GUARD_H

#include "classify_maps.h"
#include "message.h"
#include "outer.h"

/*
 * How many initiations reach the handshake workers: so many per source, an IPv4 address or IPv6 /64, and so many per
 * CPU from all sources together. Each limit is a token bucket in one word (GCRA, ITU-T I.371): the instant at which the
 * bucket will be full again. A source's word may lose a change when two CPUs make one at the same time. The budget is
 * then exceeded by as much; the CPU's never is.
 *
 * How a peer gets through with its handshake while others flood:
 *
 * Under load the workers answer an initiation with a cookie, and the peer comes again with mac2 a Rekey-Timeout (5 s)
 * later. That is two initiations in five seconds from a source that may send a burst of many.
 *
 * Whoever floods from where it is exhausts its own budget, and what is dropped for that costs the CPU's budget nothing.
 *
 * Who invents sources has no cookie, and exhausts the CPU's budget for initiations without one; those with one have
 * another. mac2 cannot be checked here (it is a keyed BLAKE2s), so that who invents mac2 too exhausts both.
 *
 * The sources that peers were last heard from are in a map of their own. They have budgets that nobody else's packets
 * can push out of memory, and need none of the CPU's: sessions are renewed whatever others do.
 *
 * Who knows a peer's address, or shares it (NAT, the /64, a link's fe80::), and sends as if from it, exhausts that
 * source's budget. What is beyond it has one more budget of the CPU's, for all known sources, so that the peer's chance
 * is that of one among the flood for thousands of tokens a second, not for fifty. That is still less than without a guard
 * where the workers could take the whole flood: they check mac1 first, which cannot be done here either. The peer's end
 * of a session is not the only one that can renew it: to our own initiations responses come unguarded.
 *
 * Not guarded is what the kernel has yet to put together or to skip: IP fragments and IPv6 extension headers.
 */

/* Takes a token at the instant now. Returns whether there was one. The word may be ahead by another CPU's clock. */
INLINE int take(u64 *word, u64 now, u64 interval, u64 tolerance)
{
	u64 full = *word;

	if (!interval)
		return 1;
	if ((s64)(full - now) < 0)
		full = now;
	if (full - now > tolerance)
		return 0;
	*word = full + interval;
	return 1;
}

/* What is limited as one. No IPv6 /64 is taken for a mapped IPv4 address: of those only the lower half is not zero. */
INLINE void limited_as(const struct outer *o, struct address *source)
{
	outer_src(o, source->words);
	if (o->v6)
		source->words[2].raw = source->words[3].raw = 0;
}

/* Returns whether the initiation may have a cookie in its mac2. */
INLINE int has_cookie(const struct message *m, void *end)
{
	const u64 *mac2 = (void *)m + MAC2_OFFSET;

	return (void *)(mac2 + 2) <= end && (mac2[0] | mac2[1]);
}

INLINE int take_total(u64 now, u32 which)
{
	u32 key = 0;
	struct total *total = bpf_map_lookup_elem(&totals, &key);

	return !total || take(&total->words[which], now, total_interval, total_tolerance);
}

/* Takes a token for a source that is known by its word. */
INLINE int take_known(u64 *word, u64 now)
{
	if (take(word, now, source_interval, source_tolerance))
		return 1;
	return total_interval && take_total(now, TOTAL_KNOWN);
}

/* Returns what becomes of an initiation. */
INLINE int guard(const struct outer *o, const struct message *m, void *end)
{
	struct address source = {}; /* or the verifier sees it unset where the packet is of neither version */
	u64 now, *word;

	if (!source_interval && !total_interval)
		return pass(CLASSIFY_INITIATION);
	now = bpf_ktime_get_ns();
	limited_as(o, &source);
	word = bpf_map_lookup_elem(&known, &source);
	if (word)
		return take_known(word, now) ? pass(CLASSIFY_INITIATION) : drop(DROP_HS_SOURCE_BUDGET);
	word = bpf_map_lookup_elem(&sources, &source);
	if (word && !take(word, now, source_interval, source_tolerance))
		return drop(DROP_HS_SOURCE_BUDGET);
	/* Before a source is remembered, which costs more than all else here and may push another out. */
	if (!take_total(now, has_cookie(m, end) ? TOTAL_COOKIE : TOTAL_BARE))
		return drop(DROP_HS_TOTAL_BUDGET);
	if (!word && source_interval) {
		now += source_interval;
		bpf_map_update_elem(&sources, &source, &now, 0);
	}
	return pass(CLASSIFY_INITIATION);
}

#endif
