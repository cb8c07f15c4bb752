// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * classify (XDP): runs in front of ropewalk's receiver. It decides for each packet to the listen port:
 *
 * - A data message goes to the AF_XDP socket of its receive queue.
 * - Without such a socket, or if the frame does not fit it, it goes up the stack.
 * - Handshakes, cookie replies and keepalives go up the stack.
 * - Initiations beyond the rate limits are dropped (ratelimit.h), also those to other ports from which the tunnel sends: a
 *   peer that does not gather answers to these.
 * - With check_indices, data messages with an unknown receiver index are dropped if they come from a peer's endpoint. From
 *   elsewhere they go up the stack: they may be for another WireGuard, to which this host translates the listen port (NAT).
 *
 * The program handles only packets to an address of this host, which Go reads from the kernel. The same
 * device may forward other hosts' WireGuard traffic to the same port.
 *
 * Messages given to a socket bypass the checks of the IP stack. The program itself checks:
 *
 * - the IP version and header length
 * - that the packet is not a fragment
 * - that the destination is local and the source is not martian
 * - that the IP and UDP lengths agree and the frame is complete
 *
 * A packet that fails a check goes up the stack.
 *
 * It does not verify checksums. The payload has its authentication tag. A corrupted destination or length fails one of
 * the checks above, or that tag. A corrupted source remains: it becomes the peer's endpoint (WireGuard paper, section
 * 2.1) until the peer's next message. Any attacker could do the same by forwarding a message from another address.
 *
 * Firewalls, packet taps and rp_filter do not see messages given to a socket. They do see the handshake, and without a
 * handshake there is no session.
 */

#include "include/classify_maps.h"
#include "include/parse.h"
#include "include/ratelimit.h"
#include "include/wireguard.h"

INLINE int is_local(const struct outer *o)
{
	struct address destination = {};

	/* An invalid destination in ::/64 could match an IPv4 address, which the map holds as ::ffff:a.b.c.d. */
	if (o->v6 && !o->v6->dst[0].raw)
		return 0;
	outer_dst(o, destination.words);
	return bpf_map_lookup_elem(&addresses, &destination) != 0;
}

/* Returns whether the frame is complete and short enough for an AF_XDP socket. */
INLINE int fits_socket(struct xdp_md *xdp, const struct outer *o, u32 len)
{
	u32 frame = xdp->data_end - xdp->data;

	return frame <= max_frame && o->udp_offset + len <= frame;
}

/* Returns whether no peer can have the source address. They go to the stack, which drops most of them. */
INLINE int is_martian(const struct outer *o)
{
	u32 first;

	if (o->v6) /* multicast, or in ::/64, which holds the loopback address and mapped IPv4 addresses */
		return (host64(o->v6->src[0]) >> 56) == 0xff || !o->v6->src[0].raw;
	first = o->v4 ? host32(o->v4->src) >> 24 : 0;
	return first == 0 || first == 127 || first >= 224;
}

/* Handles a data message that is for none of this host's sessions. */
INLINE int unknown_index(const struct outer *o)
{
	struct endpoint source = {};

	outer_src(o, source.address.words);
	source.port = o->udp->ports.src;
	if (bpf_map_lookup_elem(&endpoints, &source))
		return drop(DROP_RX_UNKNOWN_INDEX);
	return pass(CLASSIFY_UNKNOWN_INDEX);
}

INLINE int classify_data(struct xdp_md *xdp, const struct outer *o, u32 index)
{
	u32 len = host16(o->udp->len);
	int fits;

	if (check_indices && !bpf_map_lookup_elem(&indices, &index))
		return unknown_index(o);
	if (len == sizeof(*o->udp) + KEEPALIVE_LEN)
		return pass(CLASSIFY_KEEPALIVE);
	if ((s32)len != o->ip_room)
		return pass(CLASSIFY_MALFORMED);
	if (is_martian(o))
		return pass(CLASSIFY_MARTIAN);
	fits = fits_socket(xdp, o, len);
	if (fits && bpf_redirect_map(&xsks, xdp->rx_queue_index, XDP_PASS) == XDP_REDIRECT)
		return redirected(CLASSIFY_SOCKET);
	return pass(fits ? CLASSIFY_NO_SOCKET : CLASSIFY_TOO_LONG);
}

/* Returns the message, or null if the packet is too short for one. */
INLINE const struct message *find_message(const struct outer *o, void *end)
{
	const struct message *m = (void *)(o->udp + 1);

	return (void *)(m + 1) > end ? 0 : m;
}

INLINE int is_initiation(const struct outer *o, const struct message *m)
{
	return m->type == INITIATION && host16(o->udp->len) == sizeof(*o->udp) + INITIATION_LEN;
}

/* Returns whether a packet to another port than the listen port is an initiation to a port from which the tunnel sends. */
INLINE int is_source_initiation(const struct outer *o, void *end)
{
	const struct message *m = find_message(o, end);
	u32 port = host16(o->udp->ports.dst);

	return m && is_initiation(o, m) && bpf_map_lookup_elem(&source_ports, &port);
}

/* Handles a packet to the tunnel. */
INLINE int classify_tunnel(struct xdp_md *xdp, const struct outer *o, void *end)
{
	const struct message *m = find_message(o, end);

	if (!is_local(o))
		return pass(CLASSIFY_NOT_LOCAL);
	if (o->fragment)
		return pass(CLASSIFY_FRAGMENT);
	if (bad_length(o))
		return pass(CLASSIFY_MALFORMED);
	if (!m)
		return pass(CLASSIFY_OTHER);
	if (m->type == DATA_MESSAGE && host16(o->udp->len) >= sizeof(*o->udp) + KEEPALIVE_LEN)
		return classify_data(xdp, o, m->index);
	if (is_initiation(o, m))
		return limit_initiation(o, m, end);
	return pass(CLASSIFY_OTHER);
}

SEC("xdp")
int classify(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct outer o;

	parse_outer(data, end, 1, 1, &o);
	if (!o.udp)
		return XDP_PASS;
	if (host16(o.udp->ports.dst) != listen_port && !is_source_initiation(&o, end))
		return XDP_PASS;
	return classify_tunnel(xdp, &o, end);
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
