/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_PROBE_H
#define ROPEWALK_PROBE_H

#include "probe_message.h"
#include "lane.h"
#include "restore.h"

/*
 * Proves that the path admits each lane port. Probes leave from the listen port, once per round, and from lane ports. The peer's gather program
 * answers each from its listen port to the prober's listen port, which every stateful firewall admits. So a missing answer depends only on the
 * port from which the probe came.
 *
 * A lane is open, and messages leave from its port, only after one of its probes was answered (RFC 8899 probes a path in the same way before
 * using it). It is closed when three of its probes in a row stay unanswered. A round counts only if its probe from the listen port was answered,
 * and one of a later round too. So neither an outage of the whole path nor a delay closes a lane. Rounds that left the masks count as well: beside a
 * busy port, a quiet one has few probes in many rounds. If the listen port's probes stay unanswered for SILENT_ROUNDS, the peer has become silent,
 * and all proofs end. A peer that never answers is never spread to.
 *
 * Probes are few: each takes one of the peer's credit. PROBE_MESSAGES messages from a port earn PROBE_EARNED, which are 2 %, and the port is probed.
 * A message after PROBE_IDLE without a round earns PROBE_IDLE_EARNED and begins one: less than one probe a minute, however many flows are quiet.
 * A message from a port without a probe for PROBE_IDLE has one of the credit above PROBE_RESERVE. The reserve is for what may be lost: a port is
 * probed again while its last probe is unanswered. While the listen port's are, no other is, and rounds become twice as long each time.
 *
 * A probe is made of a data message: bpf_clone_redirect sends a clone to the same device. The clone passes this program
 * again, ahead of the message, and is shortened there. If that fails, the probe is lost and the message is not.
 */

/* The least length of a round in nanoseconds. A round begins with a message. */
#define PROBE_ROUND 250000000ULL
/* The greatest length is PROBE_ROUND << PROBE_MAX_SHIFT: 4 minutes. */
#define PROBE_MAX_SHIFT 10
#define SILENT_ROUNDS 8
#define PROBE_MESSAGES 150
#define PROBE_EARNED 3 /* the cost of a round, and one to keep */
#define PROBE_IDLE (1LL << 37) /* ns: 137 s */
#define PROBE_IDLE_EARNED 2
#define PROBE_TICK 33 /* lane.probed is in units of 8.6 s */
#define PROBE_RESERVE (SILENT_ROUNDS + 1) /* probes that find out whether a peer is silent */
#define PROBE_LATE (1LL << 32) /* ns: 4.3 s, until a probe from the listen port is sent again */
/* Later answers do not count. */
#define PROBE_TIMEOUT 10000000000ULL
#define PROBE_MASK_BITS 32

/* Marks that all clones have in skb->cb[0] and [1]. The port and the lane are in [2] and [3]. */
enum {
	PROBE_CB0 = 0x5f2c81d7,
	PROBE_CB1 = 0x9b03e64a,
};

/* Other programs may use the same words. */
INLINE void clear_marks(struct __sk_buff *skb)
{
	skb->cb[0] = skb->cb[1] = skb->cb[2] = skb->cb[3] = 0;
}

INLINE int is_probe_clone(const struct __sk_buff *skb)
{
	return skb->cb[0] == PROBE_CB0 && skb->cb[1] == PROBE_CB1;
}

/* Sends a clone of the message through this program, which makes it a probe. Invalidates all pointers into the packet. */
INLINE void send_probe(struct counters *cpu, struct __sk_buff *skb, be16 port, u32 lane)
{
	skb->cb[0] = PROBE_CB0;
	skb->cb[1] = PROBE_CB1;
	skb->cb[2] = port.raw;
	skb->cb[3] = lane;
	if (bpf_clone_redirect(skb, skb->ifindex, 0))
		count(cpu, EVENT_PROBE_ERROR, 1);
	clear_marks(skb);
}

/* Shifts a mask of rounds, so that bit 0 is the present round after further rounds have begun. */
INLINE u32 aged(u32 mask, u32 rounds)
{
	return rounds < PROBE_MASK_BITS ? mask << rounds : 0;
}

/* Returns the number of bits in a mask, at most three, without a branch: see least_loaded. */
INLINE u32 up_to_three(u32 mask)
{
	u32 n = (mask | (0 - mask)) >> 31;

	mask &= mask - 1;
	n += (mask | (0 - mask)) >> 31;
	mask &= mask - 1;
	return n + ((mask | (0 - mask)) >> 31);
}

/* Returns the rounds after a lane's last answer whose probe is unanswered. */
INLINE u32 unanswered(const struct lane *l)
{
	return l->sent & ((l->answered & (0 - l->answered)) - 1);
}

/*
 * Returns whether a lane has lost three probes in a row. Sets forgotten to the losses that its masks will no longer hold: a probe of a round that
 * leaves them is lost if the path has admitted probes from the listen port since.
 */
INLINE int is_lost(const struct peer *peer, const struct lane *l, u32 *forgotten)
{
	u32 rounds = peer->round - l->round, lost = unanswered(l), leave = lost;
	u32 earlier = peer->listen.answered & (peer->listen.answered - 1); /* all but the last answered round */

	if (rounds < PROBE_MASK_BITS)
		leave = (u64)leave << rounds >> PROBE_MASK_BITS;
	*forgotten = l->lost + (peer->listen.answered ? up_to_three(leave) : 0);
	return *forgotten + up_to_three(aged(lost, rounds) & earlier) >= 3;
}

/* Returns the length of the present round: twice as long with each round before it whose probe from the listen port stayed unanswered. */
INLINE u64 round_length(u32 answered)
{
	u64 length = PROBE_ROUND;

	for (u32 i = 0; i < PROBE_MAX_SHIFT; i++)
		length <<= !(answered & ((2U << i) - 1));
	return length;
}

/* Records that a probe is about to leave. */
INLINE void note_probe(const struct peer *peer, struct lane *l, u64 now)
{
	u32 rounds = peer->round - l->round;

	l->probed = now >> PROBE_TICK;
	l->sent = aged(l->sent, rounds) | 1;
	l->answered = aged(l->answered, rounds);
	l->round = peer->round;
	l->messages = 0;
}

INLINE void begin_round(struct counters *cpu, struct __sk_buff *skb, struct peer *peer, be16 listen_port, u64 now)
{
	peer->round_at = now;
	peer->round++;
	note_probe(peer, &peer->listen, now);
	if (peer->answers && !(peer->listen.answered & ((2U << SILENT_ROUNDS) - 1))) {
		peer->answers = 0;
		peer->ready = 0;
		peer->next = 0;
		peer->proof++;
	}
	send_probe(cpu, skb, listen_port, LISTEN_LANE);
}

/* Returns whether a port has had no probe for PROBE_IDLE. */
INLINE int is_idle(const struct lane *l, u64 now)
{
	return (u16)((now >> PROBE_TICK) - l->probed) >= PROBE_IDLE >> PROBE_TICK;
}

/* Counts a message from a port. Returns whether probes may be due. */
INLINE int is_probe_due(struct lane *l, u64 now)
{
	l->messages++;
	return l->messages >= PROBE_MESSAGES || is_idle(l, now) || l->sent & ~l->answered & 1;
}

/* Adds to the credit, which may exceed PROBE_BURST by what was added last. */
INLINE void earn(struct peer *peer, u16 probes)
{
	if (peer->credit < PROBE_BURST)
		peer->credit += probes;
}

/* Pays for a probe. Returns whether the peer's credit admits one. */
INLINE int pay(struct peer *peer)
{
	u16 credit = peer->credit;

	if (credit)
		peer->credit = credit - 1;
	return credit;
}

/*
 * Sends the probes that a message's port needs: one from the listen port if a round begins, one from the message's lane if that had none in this
 * round, and after PROBE_MESSAGES one from the next lane if that is not open. Invalidates all pointers into the packet.
 */
INLINE void send_probes(struct counters *cpu, struct __sk_buff *skb, struct peer *peer, u32 lane, u32 lanes, be16 listen_port, u64 now)
{
	struct lane *l = lane == LISTEN_LANE ? &peer->listen : lane_at(peer, lane);
	int earned = l->messages >= PROBE_MESSAGES, again = l->sent & ~l->answered & 1, waits = peer->listen.sent & ~peer->listen.answered & 1;
	s64 age = now - peer->round_at;

	if (earned) {
		l->messages = 0;
		earn(peer, PROBE_EARNED);
	} else if (again ? waits && age < PROBE_LATE : age < PROBE_IDLE && peer->credit <= PROBE_RESERVE) {
		return;
	}
	if (age >= (s64)round_length(peer->listen.answered)) {
		if (age >= PROBE_IDLE)
			earn(peer, PROBE_IDLE_EARNED);
		if (!pay(peer))
			return;
		begin_round(cpu, skb, peer, listen_port, now);
	}
	if (!peer->answers || (again && waits && !earned))
		return;
	if (l->round != peer->round) {
		u32 forgotten;

		if (is_lost(peer, l, &forgotten))
			l->proof = peer->proof - 1;
		if (!pay(peer))
			return;
		l->lost = forgotten;
		note_probe(peer, l, now);
		send_probe(cpu, skb, l->port, lane);
	}
	if (!earned)
		return;
	lane = peer->next < lanes ? peer->next : 0;
	l = lane_at(peer, lane);
	if (!is_open(peer, l) && l->round != peer->round && l->port.raw) {
		if (!pay(peer))
			return;
		note_probe(peer, l, now);
		send_probe(cpu, skb, l->port, lane);
	}
	peer->next = lane + 1;
	peer->ready |= lane + 1 == lanes;
}

/* Returns the bit of a round in a mask whose bit 0 is the present round, or 0 if the round is too old. */
INLINE u32 round_bit(u32 present, u32 round)
{
	return present - round < PROBE_MASK_BITS ? 1U << (present - round) : 0;
}

/* Records that the peer has answered a probe. */
INLINE void note_proof(struct peer *peer, const struct peer_key *at)
{
	struct source_key key = {.listen_port = at->listen_port};
	struct source *source;

	peer->answers = 1;
	peer->proved = 1;
	__builtin_memcpy(key.address, at->address, sizeof(key.address));
	source = bpf_map_lookup_elem(&sources, &key);
	if (source)
		source->proved = 1;
}

/* Records that the peer has sent an authentic probe from a port. It sends nothing else from a lane port before the answer. */
INLINE void note_heard(const struct peer_key *from, be16 port)
{
	struct source_key key = {.listen_port = from->listen_port};
	u16 heard = host16(port);
	struct source *source;

	__builtin_memcpy(key.address, from->address, sizeof(key.address));
	source = bpf_map_lookup_elem(&sources, &key);
	if (!source)
		return;
	source->heard_at = bpf_ktime_get_ns();
	if (port.raw != from->port.raw)
		source->heard[heard % HEARD_PORTS / 64] |= 1ULL << heard % 64;
}

/* Records the answer to a probe. Returns whether the probe was outstanding. */
INLINE int record_answer(struct peer *peer, const struct probe_message *m, const struct peer_key *key)
{
	u32 lane = m->lane, bit;
	struct lane *l = lane == LISTEN_LANE ? &peer->listen : lane_at(peer, lane);

	bit = round_bit(l->round, m->round);
	if (lane > LISTEN_LANE || m->secret != peer->secret || bpf_ktime_get_ns() - m->time > PROBE_TIMEOUT || !(l->sent & bit & ~l->answered) ||
	    m->port.raw != (lane == LISTEN_LANE ? key->listen_port : l->port).raw)
		return 0;
	l->answered |= bit;
	l->lost = 0;
	if (lane == LISTEN_LANE)
		note_proof(peer, key);
	else
		l->proof = peer->proof;
	return 1;
}

enum probe_verdict {
	PROBE_NONE,  /* neither a probe nor an answer: continue with the packet */
	PROBE_REPLY, /* it became an answer: send it back to the prober */
	PROBE_DONE,  /* drop it */
};

/* Returns whether the packet is a datagram of a peer with the length of a probe. */
INLINE int is_probe_length(const struct outer *o, const struct sender *from)
{
	return from->endpoint_port.raw && !o->fragment && host16(o->udp->len) == sizeof(struct probe_datagram);
}

/* Returns whether a datagram with the length of a probe is a probe or an answer. */
INLINE int is_probe(const struct probe_datagram *d)
{
	return d->message.magic == PROBE_MAGIC;
}

/* Handles a datagram of a peer: turns a probe into its answer, from the listen port to the peer's listen port, or records an answer. */
INLINE enum probe_verdict take_probe(struct counters *cpu, const struct outer *o, struct probe_datagram *d, const struct sender *from)
{
	struct peer_key key = {.port = from->endpoint_port, .listen_port = from->listen_port};
	struct probe_message *m = &d->message;
	struct peer *peer;
	int probe;

	source_of(o, key.address);
	peer = bpf_map_lookup_elem(&peers, &key);
	if (!peer || !peer->keyed)
		return PROBE_NONE;
	probe = m->kind == PROBE_KIND;
	if (m->mac == probe_mac(probe ? &peer->receive : &peer->send, m)) {
		if (probe && m->port.raw == d->udp.ports.src.raw) { /* else there is a NAT */
			note_heard(&key, m->port);
			d->udp.ports.src = d->udp.ports.dst;
			d->udp.ports.dst = key.port;
			m->kind = ANSWER_KIND;
			m->mac = probe_mac(&peer->receive, m);
			return PROBE_REPLY;
		}
		if (m->kind == ANSWER_KIND && d->udp.ports.src.raw == key.port.raw && record_answer(peer, m, &key)) {
			count(cpu, EVENT_PROBE_ANSWER, 1);
			return PROBE_DONE;
		}
	}
	count(cpu, EVENT_PROBE_BAD, 1);
	return PROBE_DONE;
}

/* Handles a received datagram with the length of a probe. Returns the verdict. */
INLINE int take_probe_tc(struct counters *cpu, struct __sk_buff *skb, const struct outer *o, const struct sender *from)
{
	struct probe_datagram d, old;

	if (bpf_skb_load_bytes(skb, o->udp_offset, &d, sizeof(d)) || !is_probe(&d))
		return TCX_NEXT;
	old = d;
	switch (take_probe(cpu, o, &d, from)) {
	case PROBE_NONE:
		return TCX_NEXT;
	case PROBE_REPLY:
		if (turn_around(skb, o) && replace_datagram(skb, o->udp_offset, &old, &d)) {
			count(cpu, EVENT_PROBE_REPLY, 1);
			/* A constant, so that the verifier knows that the packet's pointers are not used again. */
			bpf_redirect(skb->ifindex, 0);
			return TCX_REDIRECT;
		}
		count(cpu, EVENT_PROBE_ERROR, 1);
		break;
	case PROBE_DONE:
		break;
	}
	return TCX_DROP;
}

/* Like take_probe_tc. An answer leaves by XDP_TX, on the probe's queue, if the driver supports that. */
INLINE int take_probe_xdp(struct counters *cpu, void *data, void *end, const struct outer *o, const struct sender *from)
{
	struct probe_datagram d, *packet = (struct probe_datagram *)o->udp;

	if ((void *)(packet + 1) > end || !is_probe(packet))
		return XDP_PASS;
	d = *packet;
	switch (take_probe(cpu, o, &d, from)) {
	case PROBE_NONE:
		return XDP_PASS;
	case PROBE_REPLY:
		if (d.udp.checksum.raw)
			set_checksum(o, &d);
		*packet = d;
		turn_around_xdp(data, o);
		count(cpu, EVENT_PROBE_REPLY, 1);
		return XDP_TX;
	case PROBE_DONE:
		break;
	}
	return XDP_DROP;
}

/* Turns the clone of a data message into a probe. Returns the verdict. */
INLINE int become_probe(struct counters *cpu, struct __sk_buff *skb, const struct peer *peer, const struct outer *o)
{
	struct probe_datagram d = {
		.udp = {.ports = {.src = {skb->cb[2]}, .dst = o->udp->ports.dst}, .len = {__builtin_bswap16(sizeof(d))}},
		.message = {.magic = PROBE_MAGIC, .lane = skb->cb[3], .kind = PROBE_KIND, .port = {skb->cb[2]}, .round = peer->round, .secret = peer->secret},
	};

	clear_marks(skb);
	/* Else a container chooses the probe's queue by the TOS of its packets (ip_forward), or by their flow if the queues are fair, and may fill that queue. */
	skb->priority = 0;
	bpf_set_hash_invalid(skb);
	d.message.time = bpf_ktime_get_ns();
	d.message.mac = probe_mac(&peer->send, &d.message);
	if (!resize_datagram(skb, o, &d)) {
		count(cpu, EVENT_PROBE_ERROR, 1);
		return TCX_DROP;
	}
	count(cpu, EVENT_PROBE_SENT, 1);
	return TCX_NEXT;
}

#endif
