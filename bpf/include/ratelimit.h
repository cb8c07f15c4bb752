/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_RATELIMIT_H
#define ROPEWALK_RATELIMIT_H

#include "classify_maps.h"
#include "parse.h"
#include "recent_senders.h"
#include "wireguard.h"

/*
 * Rate limits for handshake initiations: one per source (an IPv4 address or IPv6 /64, source_interval), and four per CPU
 * that sources share (LIMIT_NO_MAC2, LIMIT_REPEATED, LIMIT_MAC2, LIMIT_PEERS, total_interval). Each is a token bucket in
 * one u64 (GCRA, ITU-T I.371): the theoretical arrival time (TAT), at which the bucket is full again. Two CPUs that update
 * a source's TAT at the same time may lose one update, which lets one more initiation pass. A CPU's own limits are exact.
 *
 * How a peer completes its handshake during a flood:
 *
 * Under load the handshake workers, in user space, answer an initiation with a cookie. The peer repeats it with mac2 after
 * Rekey-Timeout (5 s). That makes two initiations in five seconds, and the source's limit allows a larger burst.
 *
 * A flood from few real addresses exhausts their own limits. Dropped initiations consume nothing of the CPU's limit.
 *
 * A flood from spoofed addresses has no cookies. It exhausts the CPU's limit for first initiations without a cookie. A
 * peer from an unknown address repeats its initiation after 5 s, which such a flood does not do: it then uses another
 * limit (recent_senders.h), gets its cookie, and has a third limit for the initiation with that cookie. A flood that
 * repeats its addresses exhausts the second limit. mac2 is a keyed BLAKE2s and cannot be verified here, so a flood with
 * invented mac2 exhausts the third.
 *
 * The sources of peers are in a separate map (peer_sources): configured endpoints, and the sources of their last
 * authenticated messages. Other sources cannot evict them, and within their own limits they consume nothing of the CPU's
 * limits. So sessions are renewed during any flood.
 *
 * A sender that knows a peer's address and spoofs it, or shares it (NAT, the /64, a link's fe80::), exhausts that
 * source's limit (50 initiations a second). Initiations beyond it use one more CPU limit (2,000 a second), shared by all peer
 * sources, for which the peer then competes with the flood. Without rate limits the peer would get more only if the
 * handshake workers kept up with the whole flood. They drop messages with a wrong mac1 first; here it cannot be verified.
 * This host can still renew the session itself: responses to its own initiations are not limited.
 *
 * IP fragments and packets with IPv6 extension headers are not limited: the kernel must first reassemble or parse them.
 */

/* Takes a token at the time now. Returns whether there was one. Another CPU's clock may have put the TAT ahead of now. */
INLINE int take_token(u64 *tat, u64 now, u64 interval, u64 tolerance)
{
	u64 next = *tat;

	if (!interval)
		return 1;
	if ((s64)(next - now) < 0)
		next = now;
	if (next - now > tolerance)
		return 0;
	*tat = next + interval;
	return 1;
}

/*
 * Fills in the key under which the packet's source is limited. The lower half of an IPv6 /64 is zero, and that of a mapped
 * IPv4 address is not, so they never share a key.
 */
INLINE void limit_key(const struct outer *o, struct address *source)
{
	outer_src(o, source->words);
	if (o->v6)
		source->words[2].raw = source->words[3].raw = 0;
}

/* Returns whether the initiation has a mac2, and so perhaps a valid cookie. */
INLINE int has_mac2(const struct message *m, void *end)
{
	const u64 *mac2 = (void *)m + MAC2_OFFSET;

	return (void *)(mac2 + 2) <= end && (mac2[0] | mac2[1]);
}

/* Returns the limit that the initiation shares with those of other sources that are not peers', and notes its source. */
INLINE u32 shared_limit(const struct address *source, int mac2, u64 now)
{
	u32 again;

	if (mac2 || !total_interval) /* without limits one is as good as the other */
		return LIMIT_MAC2;
	again = note_sender(source, now);
	/* Hides the range from the compiler, which would else omit the mask below that the verifier needs. */
	__asm__ volatile("" : "+r"(again));
	return again & 1 ? LIMIT_REPEATED : LIMIT_NO_MAC2;
}

INLINE int take_cpu_token(u64 now, u32 which)
{
	u32 key = 0;
	struct cpu_limits *limits = bpf_map_lookup_elem(&cpu_limits, &key);

	return !limits || take_token(&limits->tat[which], now, total_interval, total_tolerance);
}

/* Takes a token for a peer's source: its own, or else one of those that all peer sources share, if they are limited. */
INLINE int take_peer_token(u64 *tat, u64 now)
{
	if (take_token(tat, now, source_interval, source_tolerance))
		return 1;
	return total_interval && take_cpu_token(now, LIMIT_PEERS);
}

/* Passes or drops an initiation. */
INLINE int limit_initiation(const struct outer *o, const struct message *m, void *end)
{
	struct address source = {}; /* zeroed for the verifier, which sees a path with neither IP version */
	u64 now, *tat;

	if (!source_interval && !total_interval)
		return pass(CLASSIFY_INITIATION);
	now = bpf_ktime_get_ns();
	limit_key(o, &source);
	tat = bpf_map_lookup_elem(&peer_sources, &source);
	if (tat)
		return take_peer_token(tat, now) ? pass(CLASSIFY_INITIATION) : drop(DROP_HS_XDP_SOURCE_LIMIT);
	tat = bpf_map_lookup_elem(&sources, &source);
	if (tat && !take_token(tat, now, source_interval, source_tolerance))
		return drop(DROP_HS_XDP_SOURCE_LIMIT);
	/* Precedes the insertion below, which is the most expensive step and may evict another source. */
	if (!take_cpu_token(now, shared_limit(&source, has_mac2(m, end), now)))
		return drop(DROP_HS_XDP_TOTAL_LIMIT);
	if (!tat && source_interval) {
		now += source_interval; /* the TAT after the first token */
		bpf_map_update_elem(&sources, &source, &now, 0);
	}
	return pass(CLASSIFY_INITIATION);
}

#endif
