// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * spread (egress): a tunnel's data messages get the source port of their flow's lane.
 * gather (ingress) and gather_xdp: datagrams from a peer's lane ports get its canonical port back, and those to a lane
 * port of ours go to the listen port.
 *
 * Handshakes and keepalives keep the canonical port on the way out. Every packet goes on.
 */

#include "include/gather.h"
#include "include/lane.h"
#include "include/message.h"
#include "include/outer.h"

INLINE u32 datagrams(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

/* Returns whether the packet is a data message, or a train of them, that carries an inner packet. */
INLINE int is_data(struct __sk_buff *skb, const struct outer *o, u32 len)
{
	u32 type, message = skb->gso_size ? skb->gso_size : len;

	return message > KEEPALIVE_LEN && !bpf_skb_load_bytes(skb, o->at + sizeof(*o->udp), &type, sizeof(type)) &&
	       type == DATA_MESSAGE;
}

INLINE struct peer *find_peer(const struct outer *o)
{
	struct peer_key key = {.port = o->udp->ports.dst, .tunnel = o->udp->ports.src};

	outer_dst(o, key.address);
	return bpf_map_lookup_elem(&peers, &key);
}

/* Returns the flow of a message: its hash, or what its sender put into the mark. */
INLINE u32 take_flow(struct __sk_buff *skb, u32 mark_mask)
{
	u32 flow;

	if (!mark_mask)
		return bpf_get_hash_recalc(skb);
	/* Whatever bits they are, they reach those that choose the entry (Fibonacci hashing) and the first lane. */
	flow = (skb->mark & mark_mask) * 0x9e3779b1;
	skb->mark &= ~mark_mask;
	return flow ^ flow >> 16;
}

INLINE void spread_message(struct __sk_buff *skb, struct peer *peer, u32 mark_mask, const struct outer *o)
{
	struct udp_header old = *o->udp;
	struct ports new = old.ports;
	u32 lanes = peer->lanes;

	if (lanes == 0 || lanes > SPREAD_LANES)
		return;
	new.src = peer->ports[choose_lane(peer, lanes, take_flow(skb, mark_mask), skb->len) & (SPREAD_LANES - 1)];
	if (!replace_ports(skb, o->at, old, new, BPF_F_INVALIDATE_HASH)) {
		count(EVENT_SPREAD_ERROR, 1);
		return;
	}
	count(EVENT_SPREAD, datagrams(skb));
	if (skb->gso_size)
		count(EVENT_SPREAD_TRAIN, 1);
}

SEC("tc")
int spread(struct __sk_buff *skb)
{
	struct local_port *local;
	struct outer o;
	struct peer *peer;
	u32 len;

	if (look_skb(skb, l2, &o) != LOOK_UDP)
		return TCX_NEXT;
	local = find_port(o.udp->ports.src);
	if (!local || local->canonical.raw != o.udp->ports.src.raw)
		return TCX_NEXT;
	len = host16(o.udp->len);
	if (o.fragment) {
		count(EVENT_SPREAD_FRAGMENT, 1);
	} else if (outer_lies(&o) || o.at + len > skb->len) {
		count(EVENT_SPREAD_MALFORMED, 1);
	} else if (is_data(skb, &o, len - sizeof(*o.udp))) {
		peer = find_peer(&o);
		if (peer)
			spread_message(skb, peer, local->mark_mask, &o);
		else
			count(EVENT_NO_PEER, datagrams(skb));
	}
	return TCX_NEXT;
}

SEC("tc")
int gather_tc(struct __sk_buff *skb)
{
	struct outer o;
	struct udp_header old;
	struct ports new;

	/* No queue recorded is the first: then there is no other. */
	if (look_skb(skb, l2, &o) != LOOK_UDP ||
	    !gather(&o, skb->queue_mapping ? skb->queue_mapping - 1 : 0, datagrams(skb), &new))
		return TCX_NEXT;
	old = *o.udp;
	if (replace_ports(skb, o.at, old, new, 0))
		count_gathered(old.ports, new, datagrams(skb));
	else
		count(EVENT_GATHER_ERROR, 1);
	return TCX_NEXT;
}

SEC("xdp")
int gather_xdp(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct outer o;
	struct udp_header *udp;
	struct ports old, new;

	if (look(data, end, l2, &o) != LOOK_UDP || !gather(&o, xdp->rx_queue_index, 1, &new))
		return XDP_PASS;
	udp = o.udp;
	old = udp->ports;
	udp->ports = new;
	if (udp->checksum.raw)
		udp->checksum.raw = corrected(udp->checksum.raw, both(old), both(new));
	count_gathered(old, new, 1);
	return XDP_PASS;
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
