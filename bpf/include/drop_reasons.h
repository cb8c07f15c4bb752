/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_DROP_REASONS_H
#define ROPEWALK_DROP_REASONS_H

/*
 * Why a packet was discarded. The one list for eBPF and Go: pkg/drop is generated from it (make generate).
 * Each line is `NAME, // help`; the help text becomes the operator's documentation. Append only, before DROP_REASONS.
 */
enum drop_reason {
	DROP_NONE,                  // not dropped
	/* from the TUN towards the underlay */
	DROP_TX_VNET_HEADER,        // the TUN returned a virtio-net header that contradicts its packet
	DROP_TX_MALFORMED,          // the inner packet is neither IPv4 nor IPv6, or lies about its length
	DROP_TX_NO_PEER,            // no peer's allowed IPs cover the destination
	DROP_TX_NO_ENDPOINT,        // the peer has no endpoint to send to
	DROP_TX_STAGED_OVERFLOW,    // too much was waiting for a handshake; one had to go
	DROP_TX_STAGED_EXPIRED,     // the handshake that packets waited for never completed
	DROP_TX_EXHAUSTED,          // the session may send no more messages (Reject-After-Messages)
	DROP_TX_SEND_ERROR,         // the kernel refused to send the datagram
	DROP_TX_TOO_BIG,            // the datagram exceeds what UDP or the path can carry
	DROP_TX_DOWN,               // the interface is down
	DROP_TX_TUN_READ,           // the TUN gave an error instead of a packet
	DROP_TX_NO_SESSION,         // there is no session and none can be made, or it ended before the packet was encrypted
	/* from the underlay towards the TUN */
	DROP_RX_TOO_SHORT,          // shorter than the smallest WireGuard message
	DROP_RX_BAD_TYPE,           // unknown message type, or reserved bits set
	DROP_RX_BAD_LENGTH,         // a handshake or cookie message of the wrong length
	DROP_RX_TRUNCATED,          // the datagram did not fit the receive buffer
	DROP_RX_UNKNOWN_INDEX,      // no session or handshake has this receiver index
	DROP_RX_EXPIRED,            // the session is older than Reject-After-Time or has taken Reject-After-Messages
	DROP_RX_AUTH,               // the authentication tag is wrong
	DROP_RX_REPLAY,             // the counter was seen before or lies behind the replay window
	DROP_RX_INNER_MALFORMED,    // the decrypted packet is neither IPv4 nor IPv6, or lies about its length
	DROP_RX_INNER_SPOOFED,      // the decrypted source address belongs to another peer or to none
	DROP_RX_TUN_WRITE,          // the TUN refused the packet
	DROP_RX_DOWN,               // the interface is down
	DROP_RX_RECEIVE,            // the socket gave an error instead of a datagram
	/* handshakes */
	DROP_HS_QUEUE_FULL,         // more handshake messages than the workers can take
	DROP_HS_BAD_MAC1,           // mac1 is wrong: the sender does not know our public key
	DROP_HS_NO_COOKIE,          // under load and without a valid mac2: answered with a cookie
	DROP_HS_RATE_LIMITED,       // under load and too many from this source address
	DROP_HS_INVALID,            // the handshake does not decrypt or does not fit its state
	DROP_HS_UNKNOWN_PEER,       // a valid initiation from a key that is not configured
	DROP_HS_REPLAY,             // the initiation's timestamp is not later than the last one
	DROP_HS_FLOOD,              // initiations from one peer faster than one per 20 ms
	DROP_HS_BAD_COOKIE,         // a cookie reply that fits no message we sent
	/* hellos of authenticated peers */
	DROP_HELLO_INVALID,         // a hello that is truncated or malformed
	DROP_HELLO_VERSION,         // a hello of a version this release does not know
	DROP_HELLO_UNWANTED,        // a hello while spreading is off, or one too many within a second
	/* initiations that the XDP program in front of a receiver does not let in */
	DROP_HS_SOURCE_BUDGET,      // initiations from one IPv4 address or IPv6 /64 beyond its budget, dropped in XDP
	DROP_HS_TOTAL_BUDGET,       // initiations from all sources together beyond what one CPU lets in, dropped in XDP
	/* what the kernel has not let into a lane's sockets, by its own counters (SK_MEMINFO_DROPS, XDP_STATISTICS) */
	DROP_RX_SOCKET,             // dropped by the kernel at a socket: the buffer was full, or a flood's train or a wrong checksum was refused
	DROP_REASONS,
};

#endif
