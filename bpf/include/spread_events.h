/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_SPREAD_EVENTS_H
#define ROPEWALK_SPREAD_EVENTS_H

/*
 * Counters of the spread and gather programs, for packets of configured tunnels only, and for frames with too many VLAN tags to be read.
 * Go's Event is generated from this enum (make generate). Each line is `EVENT_NAME, // help`. Each datagram of a received train counts.
 * A change is one of the maps' layout (pins.go).
 */
enum spread_event {
	EVENT_SPREAD,            // data messages sent with the source port of their flow's lane
	EVENT_FLOW_NEW,          // flows assigned to a lane for the first time
	EVENT_FLOW_REASSIGNED,   // flows assigned to a lane again, after a silence longer than the gap
	EVENT_NO_PEER,           // data messages not spread: no configured peer has this address and port
	EVENT_EGRESS_FRAGMENT,   // data messages and handshakes that left in fragments, which keep the listen port
	EVENT_EGRESS_MALFORMED,  // outgoing packets not spread: the UDP length is invalid
	EVENT_EGRESS_ERROR,      // data messages not spread: the kernel had no memory to rewrite them
	EVENT_GATHER,            // datagrams from a peer's lane port whose source port was restored
	EVENT_TO_LISTEN_PORT,    // datagrams to a lane port of this host that were redirected to the listen port
	EVENT_INGRESS_MALFORMED, // incoming packets left unchanged: the UDP length is invalid
	EVENT_INGRESS_ERROR,     // datagrams left unchanged: the kernel had no memory to rewrite them
	EVENT_PACKET_TOO_BIG,    // Packet Too Big messages about a lane port of this host, whose quoted source port was restored
	EVENT_UNPROVEN,          // data messages not spread: the peer has not answered probes from the lane ports
	EVENT_PAUSED,            // data messages not spread: spread is paused for the device or the peer
	EVENT_PROBE_SENT,        // probes sent to peers, from the listen port or a lane port
	EVENT_PROBE_ANSWER,       // answers of peers to these probes
	EVENT_PROBE_REPLY,        // probes of peers that were answered
	EVENT_PROBE_BAD,          // probes and answers from a peer's address that were dropped: forged, replayed, late or through a NAT
	EVENT_PROBE_ERROR,        // probes and answers not sent: the kernel had no memory, or the device refused them
	EVENT_PORT_BLOCKED,      // data messages not spread: the peer no longer answers probes from their lane port
	EVENT_FRAGMENTATION_NEEDED, // ICMP Fragmentation Needed about packets to peers, neither TCP nor SCTP, or in fragments: dropped, since it may be forged; the error filter also counts Packet Too Big
	EVENT_TOO_MANY_TAGS,     // frames with more tags of VLAN 0 than the program reads: dropped, since such an error may be behind the tags
	SPREAD_EVENTS,
};

#endif
