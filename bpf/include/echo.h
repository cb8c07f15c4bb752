/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_ECHO_H
#define ROPEWALK_ECHO_H

#include "echo_message.h"
#include "lane.h"
#include "restore.h"

/*
 * Tests whether the path admits each lane port. While messages are spread, probes leave from the listen port and from each
 * lane port in use, once per round. The peer's gather program answers each from its listen port to the prober's listen port,
 * which every stateful firewall admits. So a missing answer depends only on the port from which the probe came.
 *
 * A lane port is blocked, and its messages keep the listen port, when three of its probes in a row stay unanswered. A round
 * counts only if its probe from the listen port was answered, and one of a later round too. So neither an outage of the whole
 * path nor a delay blocks a port, nor does a peer that never answers. The port is open again with the next answer.
 *
 * A probe is made of a data message: bpf_clone_redirect sends a clone to the same device. The clone passes this program
 * again, ahead of the message, and is shortened there. If that fails, the probe is lost and the message is not.
 */

/* The length of a round in nanoseconds. A round begins with a message. */
#define ECHO_ROUND 250000000ULL
/* The length of a round until the peer's first answer. The peer may not support the echo, so its lanes are not probed until then. */
#define ECHO_FIRST_ROUND 1000000000ULL
/* A blocked port has a probe in every fourth round. */
#define ECHO_BLOCKED_ROUNDS 4
/* Later answers do not count. */
#define ECHO_TIMEOUT 10000000000ULL
#define ECHO_MASK_BITS 32

/* Marks that all clones have in skb->cb[0] and [1]. The port and the lane are in [2] and [3]. */
enum {
	ECHO_CB0 = 0x5f2c81d7,
	ECHO_CB1 = 0x9b03e64a,
};

INLINE int is_probe_clone(const struct __sk_buff *skb)
{
	return skb->cb[0] == ECHO_CB0 && skb->cb[1] == ECHO_CB1;
}

/* Sends a clone of the message through this program, which makes it a probe. Invalidates all pointers into the packet. */
INLINE void send_probe(struct counters *cpu, struct __sk_buff *skb, be16 port, u32 lane)
{
	skb->cb[0] = ECHO_CB0;
	skb->cb[1] = ECHO_CB1;
	skb->cb[2] = port.raw;
	skb->cb[3] = lane;
	if (bpf_clone_redirect(skb, skb->ifindex, 0))
		count(cpu, EVENT_ECHO_ERROR, 1);
	skb->cb[0] = 0;
}

/* Shifts a mask of rounds, so that bit 0 is the present round after further rounds have begun. */
INLINE u32 aged(u32 mask, u32 rounds)
{
	return rounds < ECHO_MASK_BITS ? mask << rounds : 0;
}

/* Returns whether the lane lost three probes in a row. Bit 0 of the lane's masks must be the present round. */
INLINE int is_lost(const struct echo *e, const struct lane_echo *l)
{
	u32 earlier = e->answered & (e->answered - 1);	   /* all but the last answered round */
	u32 since = (l->answered & (0 - l->answered)) - 1; /* the rounds after the lane's last answer */
	u32 lost = l->sent & earlier & since;

	lost &= lost - 1;
	lost &= lost - 1;
	return lost != 0;
}

INLINE void begin_round(struct counters *cpu, struct __sk_buff *skb, struct echo *e, be16 listen_port, u64 now)
{
	e->round_at = now;
	e->round++;
	e->answered <<= 1;
	send_probe(cpu, skb, listen_port, ECHO_LISTEN_PORT);
}

INLINE void probe_lane(struct counters *cpu, struct __sk_buff *skb, const struct echo *e, struct lane_echo *l, be16 port, u32 lane)
{
	u32 rounds = e->round - l->round;

	if (l->blocked && rounds < ECHO_BLOCKED_ROUNDS)
		return;
	l->sent = aged(l->sent, rounds) | 1;
	l->answered = aged(l->answered, rounds);
	l->round = e->round;
	send_probe(cpu, skb, port, lane);
}

/* Probes the lane of a message if that is due. Returns whether the message should keep the listen port. */
INLINE int is_blocked(struct counters *cpu, struct __sk_buff *skb, struct echo *e, u32 lane, be16 listen_port, be16 port, u64 now)
{
	struct lane_echo *l;

	if (!e->on)
		return 0;
	/* The verifier of Linux 5.10 forgets the range of a number on the stack, but not that of a pointer. */
	__asm__ volatile("" : "+r"(lane));
	lane &= SPREAD_LANES - 1;
	l = &e->lanes[lane];
	if ((s64)(now - e->round_at) >= (s64)(e->answers ? ECHO_ROUND : ECHO_FIRST_ROUND))
		begin_round(cpu, skb, e, listen_port, now);
	if (e->answers && l->round != e->round)
		probe_lane(cpu, skb, e, l, port, lane);
	if (l->evaluated != e->answers) {
		l->evaluated = e->answers;
		l->blocked |= is_lost(e, l);
	}
	return l->blocked;
}

/* Returns the bit of a round in a mask whose bit 0 is the present round, or 0 if the round is too old. */
INLINE u32 round_bit(u32 present, u32 round)
{
	return present - round < ECHO_MASK_BITS ? 1U << (present - round) : 0;
}

/* Records the answer to a probe. Returns whether the probe was outstanding. */
INLINE int record_answer(struct peer *peer, const struct echo_message *m, be16 listen_port)
{
	struct echo *e = &peer->echo;
	struct lane_echo *l;
	u32 bit, lane = m->lane;

	if (bpf_ktime_get_ns() - m->time > ECHO_TIMEOUT)
		return 0;
	if (lane == ECHO_LISTEN_PORT) {
		bit = round_bit(e->round, m->round);
		if (!bit || e->answered & bit || m->port.raw != listen_port.raw)
			return 0;
		e->answered |= bit;
		e->answers++;
		return 1;
	}
	__asm__ volatile("" : "+r"(lane));
	if (lane >= SPREAD_LANES || peer->ports[lane].raw != m->port.raw)
		return 0;
	l = &e->lanes[lane];
	bit = round_bit(l->round, m->round);
	if (!(l->sent & bit & ~l->answered))
		return 0;
	l->answered |= bit;
	l->blocked = 0;
	return 1;
}

enum echo_verdict {
	ECHO_NONE,  /* no datagram of the echo: continue with the packet */
	ECHO_REPLY, /* it became an answer: send it back to the prober */
	ECHO_DONE,  /* drop it */
};

/* Returns whether the packet is a datagram of a peer with the length of a probe. */
INLINE int is_echo_length(const struct outer *o, const struct sender *from)
{
	return from->endpoint_port.raw && !o->fragment && host16(o->udp->len) == sizeof(struct echo_datagram);
}

/* Returns whether a datagram with the length of a probe is a probe or an answer. */
INLINE int is_echo(const struct echo_datagram *d)
{
	return d->message.magic == ECHO_MAGIC;
}

/* Handles a datagram of a peer: turns a probe into its answer, from the listen port to the peer's listen port, or records an answer. */
INLINE enum echo_verdict take_echo(struct counters *cpu, const struct outer *o, struct echo_datagram *d, const struct sender *from)
{
	struct peer_key key = {.port = from->endpoint_port, .listen_port = from->listen_port};
	struct echo_message *m = &d->message;
	struct peer *peer;
	int probe;

	outer_src(o, key.address);
	peer = bpf_map_lookup_elem(&peers, &key);
	if (!peer || !peer->echo.on)
		return ECHO_NONE;
	probe = m->kind == ECHO_PROBE;
	if (m->mac == echo_mac(probe ? &peer->echo.receive : &peer->echo.send, m)) {
		if (probe && m->port.raw == d->udp.ports.src.raw) { /* else there is a NAT */
			d->udp.ports.src = d->udp.ports.dst;
			d->udp.ports.dst = key.port;
			m->kind = ECHO_ANSWER;
			m->mac = echo_mac(&peer->echo.receive, m);
			return ECHO_REPLY;
		}
		if (m->kind == ECHO_ANSWER && d->udp.ports.src.raw == key.port.raw && record_answer(peer, m, key.listen_port)) {
			count(cpu, EVENT_ECHO_ANSWER, 1);
			return ECHO_DONE;
		}
	}
	count(cpu, EVENT_ECHO_BAD, 1);
	return ECHO_DONE;
}

/* Handles a received datagram with the length of an echo. Returns the verdict. */
INLINE int take_echo_tc(struct counters *cpu, struct __sk_buff *skb, const struct outer *o, const struct sender *from)
{
	struct echo_datagram d, old;

	if (bpf_skb_load_bytes(skb, o->udp_offset, &d, sizeof(d)) || !is_echo(&d))
		return TCX_NEXT;
	old = d;
	switch (take_echo(cpu, o, &d, from)) {
	case ECHO_NONE:
		return TCX_NEXT;
	case ECHO_REPLY:
		if (swap_addresses(skb, o) && replace_datagram(skb, o->udp_offset, &old, &d)) {
			count(cpu, EVENT_ECHO_REPLY, 1);
			/* A constant, so that the verifier knows that the packet's pointers are not used again. */
			bpf_redirect(skb->ifindex, 0);
			return TCX_REDIRECT;
		}
		count(cpu, EVENT_ECHO_ERROR, 1);
		break;
	case ECHO_DONE:
		break;
	}
	return TCX_DROP;
}

/* Like take_echo_tc. An answer leaves by XDP_TX, on the probe's queue, if the driver supports that. */
INLINE int take_echo_xdp(struct counters *cpu, void *data, void *end, const struct outer *o, const struct sender *from)
{
	struct echo_datagram d, *packet = (struct echo_datagram *)o->udp;

	if ((void *)(packet + 1) > end || !is_echo(packet))
		return XDP_PASS;
	d = *packet;
	switch (take_echo(cpu, o, &d, from)) {
	case ECHO_NONE:
		return XDP_PASS;
	case ECHO_REPLY:
		if (d.udp.checksum.raw)
			set_checksum(o, &d);
		*packet = d;
		swap_addresses_xdp(data, o);
		count(cpu, EVENT_ECHO_REPLY, 1);
		return XDP_TX;
	case ECHO_DONE:
		break;
	}
	return XDP_DROP;
}

/* Turns the clone of a data message into a probe. Returns the verdict. */
INLINE int become_probe(struct counters *cpu, struct __sk_buff *skb, const struct echo *e, const struct outer *o)
{
	struct echo_datagram d = {
		.udp = {.ports = {.src = {skb->cb[2]}, .dst = o->udp->ports.dst}, .len = {__builtin_bswap16(sizeof(d))}},
		.message = {.magic = ECHO_MAGIC, .lane = skb->cb[3], .kind = ECHO_PROBE, .port = {skb->cb[2]}, .round = e->round},
	};

	skb->cb[0] = 0;
	d.message.time = bpf_ktime_get_ns();
	d.message.mac = echo_mac(&e->send, &d.message);
	if (!resize_datagram(skb, o, &d)) {
		count(cpu, EVENT_ECHO_ERROR, 1);
		return TCX_DROP;
	}
	count(cpu, EVENT_ECHO_PROBE, 1);
	return TCX_NEXT;
}

#endif
