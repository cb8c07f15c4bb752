/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_DROP_REASONS_H
#define ROPEWALK_DROP_REASONS_H

/*
 * Reasons for which packets are discarded, in eBPF and Go. Go's package drop is generated from this enum (make generate).
 * Each line is `NAME, // help`. The help text appears in the operator's documentation. Append only, before DROP_REASONS.
 */
enum drop_reason {
	DROP_NONE,                  // not dropped
	/* from the TUN towards the underlay */
	DROP_TX_VNET_HEADER,        // the TUN's virtio-net header does not match its packet
	DROP_TX_MALFORMED,          // the inner packet is neither IPv4 nor IPv6, or its length is invalid
	DROP_TX_NO_PEER,            // no peer's allowed IPs cover the destination
	DROP_TX_NO_ENDPOINT,        // the peer has no endpoint to send to
	DROP_TX_STAGED_OVERFLOW,    // the queue of packets waiting for a handshake was full
	DROP_TX_STAGED_EXPIRED,     // the packet was waiting for a handshake that did not complete
	DROP_TX_EXHAUSTED,          // the session may send no more messages (Reject-After-Messages)
	DROP_TX_SEND_ERROR,         // the kernel returned an error when sending the datagram
	DROP_TX_TOO_BIG,            // the datagram exceeds what UDP or the path can carry
	DROP_TX_DOWN,               // the listen port is not open
	DROP_TX_TUN_READ,           // reading from the TUN failed
	DROP_TX_NO_SESSION,         // no session exists and none can be established, or the session ended before the packet was encrypted
	/* from the underlay towards the TUN */
	DROP_RX_TOO_SHORT,          // shorter than the smallest WireGuard message
	DROP_RX_BAD_TYPE,           // unknown message type, or reserved bits set
	DROP_RX_BAD_LENGTH,         // a handshake message or cookie reply of the wrong length
	DROP_RX_TRUNCATED,          // the datagram did not fit the receive buffer
	DROP_RX_UNKNOWN_INDEX,      // no session or handshake has this receiver index
	DROP_RX_EXPIRED,            // the session is older than Reject-After-Time or has received Reject-After-Messages
	DROP_RX_AUTH,               // the authentication tag is wrong
	DROP_RX_REPLAY,             // the counter was received before or is behind the replay window
	DROP_RX_INNER_MALFORMED,    // the decrypted packet is neither IPv4 nor IPv6, or its length is invalid
	DROP_RX_INNER_SPOOFED,      // the source address of the decrypted packet is not in the peer's allowed IPs
	DROP_RX_TUN_WRITE,          // writing to the TUN failed
	DROP_RX_DOWN,               // the interface is down
	DROP_RX_RECEIVE,            // receiving from the socket failed
	/* handshakes */
	DROP_HS_QUEUE_FULL,         // the queue of received handshake messages was full
	DROP_HS_BAD_MAC1,           // mac1 is invalid: the sender does not know this host's public key
	DROP_HS_NO_COOKIE,          // under load, a message without a valid mac2: a cookie was sent in reply
	DROP_HS_RATE_LIMITED,       // under load, a message beyond the rate limit of its source, or of cookies
	DROP_HS_INVALID,            // the handshake message does not decrypt, or is not expected in the handshake's state
	DROP_HS_UNKNOWN_PEER,       // a valid initiation from a public key that is not configured
	DROP_HS_REPLAY,             // the initiation's timestamp is not later than the peer's last one
	DROP_HS_FLOOD,              // a peer's initiation less than 20 ms after its last one
	DROP_HS_BAD_COOKIE,         // a cookie reply to no message that this host sent
	/* hellos (capability exchange) of authenticated peers */
	DROP_HELLO_INVALID,         // a hello that is truncated or malformed
	DROP_HELLO_VERSION,         // a hello of an unsupported version
	DROP_HELLO_UNWANTED,        // a hello or a probe that is not wanted: spread is off, more than 8 of one kind came within a second, or the peer roams all the time
	/* initiations dropped by the XDP program in front of the receiver */
	DROP_HS_XDP_SOURCE_LIMIT,   // initiations beyond the rate limit of their IPv4 address or IPv6 /64, dropped in XDP
	DROP_HS_XDP_TOTAL_LIMIT,    // initiations beyond a CPU's rate limit for all sources together, dropped in XDP
	/* dropped by the kernel at a lane's sockets, by its own counters (SK_MEMINFO_DROPS, XDP_STATISTICS) */
	DROP_RX_SOCKET,             // dropped by the kernel at the socket: the receive buffer was full, the socket filter refused a train of initiations, or the checksum was wrong
	/* the queue of received packets that are not decrypted yet */
	DROP_RX_QUEUE_FULL,         // the receive queue was full: dropped from the flow with the most bytes in it
	DROP_RX_CONGESTION,         // the flow's packets waited in the receive queue for too long: one was dropped as a congestion signal
	DROP_TX_SEND_BUFFER,        // the send buffer was full for a handshake message, a cookie reply, a keepalive or a packet that had waited for a session: the network device is too slow
	DROP_TX_QUEUE_FULL,         // the transmit queue was full: dropped from the flow with the most bytes in it
	DROP_TX_CONGESTION,         // the flow's packets waited in the transmit queue for too long: one was dropped as a congestion signal
	DROP_TX_PACKET_TOO_BIG,     // the inner packet exceeds the path MTU to the peer and may not be fragmented: an ICMP error tells the sender the size
	DROP_TX_LOOP,               // the route to the peer's endpoint leads into the tunnel itself: the message would come back as a packet to encrypt
	DROP_TX_TUN_QUEUE,          // dropped by the kernel in front of the lanes: the TUN's queue was full
	/* post-quantum exchanges */
	DROP_EXCHANGE_INVALID,      // a part of a post-quantum exchange that is truncated or malformed
	DROP_EXCHANGE_VERSION,      // a part of a post-quantum exchange of an unsupported version, kind or suite
	DROP_EXCHANGE_UNWANTED,     // a part of a post-quantum exchange that is not wanted: PostQuantum is off or inactive, or more than 16 came within a second
	DROP_RX_NOT_POST_QUANTUM,   // data in a session without a post-quantum key, which this host requires
	DROP_REASONS,
};

#endif
