/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_RECENT_SENDERS_H
#define ROPEWALK_RECENT_SENDERS_H

#include "classify_maps.h"
#include "mix.h"

/*
 * Tells a sender that tries again from one whose address a flood has invented. There is a Bloom filter of sources for each
 * of the last three intervals of 4 s (sender_interval). WireGuard repeats an initiation after 5 s (paper, section 6.1), so
 * the first one is in one of the two filters before the present one. pkg/tunnel/device does the same for cookies.
 *
 * A filter has blocks of a cache line, of which a source uses one, with one bit in each word (Putze, Sanders and Singler,
 * "Cache-, Hash- and Space-Efficient Bloom Filters", 2007). At 200,000 new sources per second, one in 400 is taken for a
 * known one, which is 500 per second. False positives use LIMIT_REPEATED only, 2,000 per second.
 *
 * Each word also holds the number of its interval, so that words of former intervals count as empty and nothing needs to be
 * cleared. CPUs update words without atomic instructions, of which Linux has no OR before 5.12. A bit that is lost costs
 * its sender one more try.
 */

#define SENDER_WORDS (sizeof(struct sender_block) / sizeof(u64))
#define SENDER_WORD_BITS 48 /* the upper 16 bits hold the interval: a word that is 73 hours old counts as new */

/* The seed is secret, so that nobody can choose sources of one block. */
INLINE u64 sender_hash(const struct address *source)
{
	const be32 *w = source->words;

	return mix(mix(((u64)w[0].raw << 32 | w[1].raw) + sender_seed) + ((u64)w[2].raw << 32 | w[3].raw));
}

INLINE struct sender_block *find_sender_block(u64 hash, u64 filter)
{
	u32 key = filter % SENDER_FILTERS * sender_blocks + ((hash >> 32) * sender_blocks >> 32);

	return bpf_map_lookup_elem(&senders, &key);
}

/* Returns the bit of a source in word i, and the number of the interval. It needs another hash than the block. */
INLINE u64 sender_word(u64 hash, u64 interval, u32 i)
{
	return interval << SENDER_WORD_BITS | 1ULL << ((hash >> 8 * i & 0xff) * SENDER_WORD_BITS >> 8);
}

INLINE int has_sender(const struct sender_block *b, u64 hash, u64 interval)
{
	u64 missing = 0;

	if (!b)
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SENDER_WORDS; i++) {
		u64 wanted = sender_word(hash, interval, i);

		missing |= (b->words[i] ^ wanted) & (wanted | ~0ULL << SENDER_WORD_BITS);
	}
	return !missing;
}

INLINE void add_sender(struct sender_block *b, u64 hash, u64 interval)
{
	if (!b)
		return;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SENDER_WORDS; i++) {
		u64 wanted = sender_word(hash, interval, i), old = b->words[i];

		b->words[i] = wanted | ((old ^ wanted) >> SENDER_WORD_BITS ? 0 : old);
	}
}

/*
 * Notes an initiation, and returns whether there was one of that source in the two intervals before. It is a function of
 * its own: inlined, it would be in the program twice.
 */
static __attribute__((noinline)) int note_sender(const struct address *source, u64 now)
{
	u64 interval = now / sender_interval, filter = interval % SENDER_FILTERS;
	u64 hash = sender_hash(source), bits = mix(hash);
	int again = has_sender(find_sender_block(hash, filter + 2), bits, interval - 1) ||
		    has_sender(find_sender_block(hash, filter + 1), bits, interval - 2);

	add_sender(find_sender_block(hash, filter), bits, interval);
	return again;
}

#endif
