/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_ANSWERS_H
#define ROPEWALK_ANSWERS_H

#include "lane.h"
#include "parse.h"
#include "spread_maps.h"
#include "wireguard.h"

/*
 * Stateful firewalls may drop what comes from lane ports and pass handshakes, which come from the listen port. A peer that gets
 * data sends data itself, or a keepalive within 10 s (WireGuard paper, section 6.5). So gather notes when each peer was heard. A
 * peer that stays silent while messages are spread to it gets them from the listen port for a while, longer each time.
 *
 * A forged data message from the peer's address counts as an answer: then messages are spread, as without this. Nobody but a
 * router on the path can stop spread.
 */

/* In ticks. Two keepalives, of which one may be lost. */
#define ANSWER_TIMEOUT (25000000000ULL >> TICK_SHIFT)
/* After a pause of this length the wait for an answer begins anew. */
#define SENDER_PAUSE (5000000000ULL >> TICK_SHIFT)
/* A peer is noted once in NOTE_JIFFIES (restore.h), one second or less, so the first spread message may look newer than its answer. */
#define NOTE_SLACK (2000000000ULL >> TICK_SHIFT)
/* The minimum number of messages without an answer: fewer may all be lost. */
#define ANSWER_MESSAGES 16
#define ANSWER_HOLD (600000000000ULL >> TICK_SHIFT)
#define ANSWER_MAX_SHIFT 4

/* Records a message that is about to be spread to a peer. Returns whether it should keep the listen port instead. */
INLINE int is_unanswered(struct answers *a, u64 tick)
{
	u64 sent = a->sent;
	u32 failures = a->failures;

	if ((s64)(a->held - tick) > 0)
		return 1;
	a->sent = tick;
	if (!a->unanswered || (s64)(tick - sent) > (s64)SENDER_PAUSE || (s64)(a->heard + NOTE_SLACK - a->unanswered) >= 0) {
		if (a->heard && (s64)(a->heard - a->held) > 0)
			a->failures = 0;
		a->unanswered = tick;
		a->messages = 0;
		return 0;
	}
	if (++a->messages < ANSWER_MESSAGES || (s64)(tick - a->unanswered) < (s64)ANSWER_TIMEOUT)
		return 0;
	a->held = tick + (ANSWER_HOLD << (failures < ANSWER_MAX_SHIFT ? failures : ANSWER_MAX_SHIFT));
	a->failures = failures + 1;
	a->unanswered = 0;
	return 1;
}

/* Notes that the peer at the packet's source was heard, if the packet is a data message. */
INLINE void note_heard(struct source *source, const struct outer *o, u32 type, be16 listen_port)
{
	struct peer_key key = {.port = source->endpoint_port, .listen_port = listen_port};
	struct peer *peer;

	if (type != DATA_MESSAGE)
		return;
	source->noted = bpf_jiffies64();
	outer_src(o, key.address);
	peer = bpf_map_lookup_elem(&peers, &key);
	if (peer)
		peer->answers.heard = monotonic() >> TICK_SHIFT;
}

#endif
