// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * classify: in front of an engine's receiver. Data messages to the canonical port go to the AF_XDP socket of their
 * receive queue; where it has none, to the CPU of their flow if flows are spread over CPUs, else up the stack, like
 * everything else: handshakes, cookies, keepalives. Initiations beyond their budget (guard.h), to whichever of the
 * tunnel's ports, and, on demand, data messages for a session that does not exist are dropped.
 *
 * Only what is addressed to this host is looked at. The same device may carry others' WireGuard traffic to the same
 * port, which is forwarded, so that a packet's destination must be among the addresses that Go read from the host's own
 * tables.
 *
 * A socket's messages bypass what the stack checks. Of that, here is checked: IP version and header length; that the
 * packet is no fragment; that its destination is ours and its source can be a peer's; that the lengths of IP and UDP
 * header agree and the frame holds as much. Not checked are the checksums: the payload has its authentication tag, and
 * with a changed destination or length a packet does not get this far or fails that tag. Left is the source, which a
 * peer's endpoint follows (WireGuard paper, section 2.1): changed on the way, it stays wrong until the peer's next
 * message, which any attacker could do by forwarding a message from elsewhere. Firewalls, taps and rp_filter do not see
 * these messages either; they do see the handshake, without which there is no session to have messages.
 */

#include "include/classify_maps.h"
#include "include/flow_hash.h"
#include "include/guard.h"
#include "include/message.h"
#include "include/outer.h"

INLINE int is_ours(const struct outer *o)
{
	struct address destination = {};

	if (o->v6 && !o->v6->dst[0].raw) /* ::/64, of which nothing comes from outside, and where the map has IPv4's */
		return 0;
	outer_dst(o, destination.words);
	return bpf_map_lookup_elem(&addresses, &destination) != 0;
}

/* Returns whether a socket takes the frame and gets all of the message. */
INLINE int fits(struct xdp_md *xdp, const struct outer *o, u32 len)
{
	u32 frame = xdp->data_end - xdp->data;

	if (frags)
		frame = bpf_xdp_get_buff_len(xdp);
	return frame <= max_frame && o->at + len <= frame;
}

/*
 * Returns the CPU of an outer flow. Adjacent source ports, as lanes have, get adjacent places; peers that all use the
 * same port begin at different ones.
 */
INLINE u32 choose_cpu(const struct outer *o)
{
	be32 source[4] = {};
	u64 place;

	outer_src(o, source);
	place = mix(mix((u64)source[0].raw << 32 | source[1].raw) + ((u64)source[2].raw << 32 | source[3].raw)) >> 32;
	place = (place + host16(o->udp->ports.src)) % places;
	__asm__ volatile(""
			 : "+r"(place)); /* or the compiler would know it to be in bounds, and the verifier would not */
	return cpu_at[place & (CLASSIFY_PLACES - 1)];
}

/*
 * Returns whether the checksum is no more than the sum of the pseudo-header: the rest was left to the device, which does
 * not tell. Of the checksums that are complete one in 65,536 looks the same. A CPU gets the frame alone, without the skb
 * that says which it is (CHECKSUM_PARTIAL).
 */
INLINE int is_unsummed(const struct outer *o)
{
	be32 words[8] = {};
	u64 sum = (u64)PROTO_UDP << 8; /* as a little-endian load sees it */

	outer_src(o, words); /* what mapping adds to IPv4's is 0xffff, which is zero */
	outer_dst(o, words + 4);
	sum += o->udp->len.raw;
	for (int i = 0; i < 8; i++)
		sum += words[i].raw;
	for (int i = 0; i < 3; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	return o->udp->checksum.raw == sum;
}

/* Returns whether nobody can have that source, or none that a peer has. Where the stack checks for it, it drops. */
INLINE int is_martian(const struct outer *o)
{
	u32 first;

	if (o->v6) /* multicast, or of ::/64, where the loopback and mapped IPv4 addresses are */
		return (host64(o->v6->src[0]) >> 56) == 0xff || !o->v6->src[0].raw;
	first = o->v4 ? host32(o->v4->src) >> 24 : 0;
	return first == 0 || first == 127 || first >= 224;
}

INLINE int take_data(struct xdp_md *xdp, const struct outer *o, u32 index)
{
	u32 len = host16(o->udp->len);
	int fit;

	if (check_indices && !bpf_map_lookup_elem(&indices, &index))
		return drop(DROP_RX_UNKNOWN_INDEX);
	if (len == sizeof(*o->udp) + KEEPALIVE_LEN)
		return pass(CLASSIFY_KEEPALIVE);
	if ((s32)len != o->room)
		return pass(CLASSIFY_MALFORMED);
	if (is_martian(o))
		return pass(CLASSIFY_MARTIAN);
	fit = fits(xdp, o, len);
	if (fit && bpf_redirect_map(&xsks, xdp->rx_queue_index, XDP_PASS) == XDP_REDIRECT)
		return redirected(CLASSIFY_SOCKET);
	if (places && unsummed && is_unsummed(o))
		return pass(CLASSIFY_UNSUMMED);
	if (places && bpf_redirect_map(&cpus, choose_cpu(o), XDP_PASS) == XDP_REDIRECT)
		return redirected(CLASSIFY_SPREAD);
	return pass(fit ? CLASSIFY_NO_SOCKET : CLASSIFY_LONG);
}

/* Returns the message, or null if not even its first words are here. */
INLINE const struct message *find_message(const struct outer *o, void *end)
{
	const struct message *m = (void *)(o->udp + 1);

	return (void *)(m + 1) > end ? 0 : m;
}

INLINE int is_initiation(const struct outer *o, const struct message *m)
{
	return m->type == INITIATION && host16(o->udp->len) == sizeof(*o->udp) + INITIATION_LEN;
}

/* To the canonical port. */
INLINE int take_packet(struct xdp_md *xdp, const struct outer *o, void *end)
{
	const struct message *m = find_message(o, end);

	if (!is_ours(o))
		return pass(CLASSIFY_FOREIGN);
	if (o->fragment)
		return pass(CLASSIFY_FRAGMENT);
	if (outer_lies(o))
		return pass(CLASSIFY_MALFORMED);
	if (!m)
		return pass(CLASSIFY_OTHER);
	if (m->type == DATA_MESSAGE && host16(o->udp->len) >= sizeof(*o->udp) + KEEPALIVE_LEN)
		return take_data(xdp, o, m->index);
	if (is_initiation(o, m))
		return guard(o, m, end);
	return pass(CLASSIFY_OTHER);
}

/* To a port of the range of lanes, of which this host's tunnel need not have every one. */
INLINE int take_stray(const struct outer *o, void *end)
{
	const struct message *m = find_message(o, end);

	if (!m || o->fragment || outer_lies(o) || !is_initiation(o, m) || !is_ours(o))
		return XDP_PASS;
	return guard(o, m, end);
}

SEC("xdp")
int classify(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct outer o;
	u16 to;

	if (look(data, end, 1, &o) != LOOK_UDP)
		return XDP_PASS;
	to = host16(o.udp->ports.dst);
	if (to == port)
		return take_packet(xdp, &o, end);
	if (first_lane <= to && to <= last_lane)
		return take_stray(&o, end);
	return XDP_PASS;
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
