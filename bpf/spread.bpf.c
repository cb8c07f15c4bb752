// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * Source-port entropy for the data messages of a WireGuard tunnel.
 *
 * spread (tc egress): sets the source port of each data message to its flow's lane port. Handshakes and keepalives
 * keep the listen port.
 *
 * gather_tc (tc ingress) and gather_xdp (XDP): restore the ports on the receiving side, see restore.h and toobig.h.
 *
 * filter_errors (tc ingress): drops forged ICMP errors on the other devices, see toobig.h.
 *
 * All handle only what this host's WireGuard sends or what is sent to it (local.h). A packet of a VLAN is left to the VLAN's device, which
 * has the programs, too, so that it counts once. They let every packet continue, except that the gather programs take probes and their answers (probe.h), and
 * drop what filter_errors drops.
 */

#include "include/probe.h"
#include "include/lane.h"
#include "include/local.h"
#include "include/parse.h"
#include "include/restore.h"
#include "include/rewrite.h"
#include "include/toobig.h"
#include "include/wireguard.h"

/* Reads the message's type. Returns whether there is one. */
INLINE int load_type(struct __sk_buff *skb, const struct outer *o, u32 *type)
{
	const struct message *m = (const struct message *)(o->udp + 1);

	if ((void *)(m + 1) > (void *)(long)skb->data_end)
		return !bpf_skb_load_bytes(skb, o->udp_offset + sizeof(*o->udp), type, sizeof(*type));
	*type = m->type;
	return 1;
}

/* Returns whether the packet is a data message that carries an inner packet. */
INLINE int is_data(struct __sk_buff *skb, const struct outer *o, u32 len)
{
	u32 type;

	return len > KEEPALIVE_LEN && load_type(skb, o, &type) && type == DATA_MESSAGE;
}

INLINE struct peer *find_peer(const struct outer *o)
{
	struct peer_key key = {.port = o->udp->ports.dst, .listen_port = o->udp->ports.src};

	destination_of(o, key.address);
	return bpf_map_lookup_elem(&peers, &key);
}

/*
 * Returns the hash of a message's inner flow. If the kernel's WireGuard leaves a hash on a message, it is that of the inner flow: the
 * kernel clears others (skb_clear_hash_if_not_l4). So skb->hash is read: the helper bpf_get_hash_recalc may compute the hash of the
 * outer packet.
 */
INLINE u32 flow_of(struct __sk_buff *skb)
{
	return skb->hash ? skb->hash : bpf_get_hash_recalc(skb);
}

/* Records for user space that a message to the peer leaves from the listen port or a lane port. */
INLINE void note_message(struct peer *peer, u64 now)
{
	u32 epoch = now >> EPOCH_SHIFT;

	if (peer->seen != epoch)
		peer->seen = epoch;
}

INLINE void spread_message(struct counters *cpu, struct __sk_buff *skb, struct peer *peer, const struct outer *o)
{
	u32 key = 0, lanes = peer->lanes, lane = LISTEN_LANE;
	const struct settings *set = bpf_map_lookup_elem(&settings, &key);
	struct udp_header old = *o->udp;
	struct ports new = old.ports;
	u64 now = monotonic();
	struct lane *l;

	note_message(peer, now);
	if (!set || !peer->keyed || lanes == 0 || lanes > SPREAD_LANES)
		return;
	if (set->paused || peer->paused) {
		count(cpu, EVENT_PAUSED, 1);
		return;
	}
	if (peer->ready)
		lane = choose_lane(cpu, peer, lanes, flow_of(skb), now, set->flowlet_gap);
	else
		count(cpu, EVENT_UNPROVEN, 1);
	l = lane == LISTEN_LANE ? &peer->listen : lane_at(peer, lane);
	add_load(l, skb->len, now);
	new.src = l->port;
	if (is_probe_due(l, now))
		send_probes(cpu, skb, peer, lane, lanes, old.ports.src, now);
	if (lane == LISTEN_LANE || !is_open(peer, l))
		return;
	/* The skb's hash is that of the inner flow and stays, for queueing disciplines and the choice of the transmit queue. */
	count(cpu, replace_ports(skb, o->udp_offset, old, new) ? EVENT_SPREAD : EVENT_EGRESS_ERROR, 1);
}

SEC("tc")
int spread(struct __sk_buff *skb)
{
	struct counters *cpu = find_counters();
	struct local_port *local;
	struct outer o;
	struct peer *peer;
	u32 len;

	parse_skb(skb, l2, &o);
	if (!cpu || !o.udp)
		return TCX_NEXT;
	local = find_local_port(o.udp->ports.src);
	if (!local || local->listen_port.raw != o.udp->ports.src.raw || !is_own(cpu, skb, &o))
		return TCX_NEXT;
	len = host16(o.udp->len);
	if (o.fragment) {
		/*
		 * The first of several fragments keeps the listen port, so all fragments of a datagram do. NICs and routers hash fragments by their
		 * addresses alone, so a lane port would change nothing. Unfragmented messages of the same flow take another queue than these,
		 * with or without a lane port.
		 */
		count(cpu, EVENT_EGRESS_FRAGMENT, 1);
		peer = find_peer(&o);
		if (peer)
			note_message(peer, monotonic());
	} else if (bad_length(&o) || o.udp_offset + len > skb->len) {
		count(cpu, EVENT_EGRESS_MALFORMED, 1);
	} else if (is_data(skb, &o, len - sizeof(*o.udp))) {
		peer = find_peer(&o);
		if (peer && is_probe_clone(skb))
			return become_probe(cpu, skb, peer, &o);
		if (peer)
			spread_message(cpu, skb, peer, &o);
		else
			count(cpu, EVENT_NO_PEER, 1);
	}
	return TCX_NEXT;
}

INLINE u32 datagram_count(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

SEC("tc")
int gather_tc(struct __sk_buff *skb)
{
	struct counters *cpu = find_counters();
	struct outer o;
	struct udp_header old;
	struct ports new;
	struct sender from;
	enum parse_result found = parse_skb(skb, l2, &o);
	int changed, verdict;

	if (cpu && found == ICMPV6_FOUND)
		restore_quoted_tc(cpu, skb, o.udp_offset);
	if (cpu && is_forged_tc(cpu, skb, found, &o))
		return TCX_DROP;
	if (!cpu || !o.udp)
		return TCX_NEXT;
	/* A driver that records no queue has only one: count its packets for queue 0. */
	changed = compute_ports(cpu, &o, skb->queue_mapping ? skb->queue_mapping - 1 : 0, datagram_count(skb), &new, &from);
	if (is_probe_length(&o, &from)) {
		verdict = take_probe_tc(cpu, skb, &o, &from);
		if (verdict != TCX_NEXT)
			return verdict;
	}
	if (!changed)
		return TCX_NEXT;
	old = *o.udp;
	if (replace_received_ports(skb, &o, old, new))
		count_restored(cpu, old.ports, new, datagram_count(skb));
	else
		count(cpu, EVENT_INGRESS_ERROR, 1);
	return TCX_NEXT;
}

SEC("tc")
int filter_errors(struct __sk_buff *skb)
{
	struct counters *cpu = find_counters();
	struct outer o;
	enum parse_result found = parse_skb(skb, l2, &o);

	return cpu && (is_forged_tc(cpu, skb, found, &o) || is_forged_too_big(cpu, skb, found, &o)) ? TCX_DROP : TCX_NEXT;
}

SEC("xdp")
int gather_xdp(struct xdp_md *xdp)
{
	struct counters *cpu = find_counters();
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct outer o;
	struct udp_header *udp;
	struct ports old, new;
	struct sender from;
	enum parse_result found = parse_outer(data, end, l2, 0, &o);
	int changed, verdict;

	if (cpu && found == ICMPV6_FOUND)
		restore_quoted_xdp(cpu, data, end, o.udp_offset);
	if (cpu && is_forged_xdp(cpu, data, end, found, &o))
		return XDP_DROP;
	if (!cpu || !o.udp)
		return XDP_PASS;
	changed = compute_ports(cpu, &o, xdp->rx_queue_index, 1, &new, &from);
	udp = o.udp;
	if (is_probe_length(&o, &from)) {
		verdict = take_probe_xdp(cpu, data, end, &o, &from);
		if (verdict != XDP_PASS)
			return verdict;
	}
	if (!changed)
		return XDP_PASS;
	old = udp->ports;
	udp->ports = new;
	if (udp->checksum.raw)
		udp->checksum.raw = update_checksum(udp->checksum.raw, port_pair(old), port_pair(new));
	count_restored(cpu, old, new, 1);
	return XDP_PASS;
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
