/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_CLASSIFY_EVENTS_H
#define ROPEWALK_CLASSIFY_EVENTS_H

/*
 * Counters of the classify program, for packets to the listen port. Each such packet counts as one event or as one drop
 * reason. Go's ClassifyEvent is generated from this enum (make generate). Each line is `CLASSIFY_NAME, // help`.
 */
enum classify_event {
	CLASSIFY_SOCKET,           // data messages redirected to the AF_XDP socket of their receive queue
	CLASSIFY_NO_SOCKET,        // data messages passed to the kernel: their receive queue has no AF_XDP socket
	CLASSIFY_TOO_LONG,         // data messages passed to the kernel: the frame is too long for AF_XDP sockets, or incomplete
	CLASSIFY_KEEPALIVE,        // keepalives passed to the kernel
	CLASSIFY_INITIATION,       // handshake initiations passed to the kernel, within the rate limits
	CLASSIFY_OTHER,            // handshake responses, cookie replies and non-WireGuard packets passed to the kernel
	CLASSIFY_NOT_LOCAL,        // packets passed to the kernel: their destination is not an address of this host
	CLASSIFY_FRAGMENT,         // IP fragments passed to the kernel; only first fragments have ports and are counted
	CLASSIFY_MALFORMED,        // packets passed to the kernel: the UDP length is invalid
	CLASSIFY_MARTIAN,          // data messages passed to the kernel: no peer can have their source address
	CLASSIFY_UNKNOWN_INDEX,    // data messages passed to the kernel: unknown receiver index, and not from a peer's endpoint
	CLASSIFY_EVENTS,
};

#endif
