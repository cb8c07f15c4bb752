/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_CLASSIFY_EVENTS_H
#define ROPEWALK_CLASSIFY_EVENTS_H

/*
 * What classify made of the packets to the canonical port, each of which counts as one event or as one drop reason; of all
 * others nothing is counted. Go's datapath.ClassifyEvent is generated from it (make generate). Each line is
 * `CLASSIFY_NAME, // help`.
 */
enum classify_event {
	CLASSIFY_SOCKET,     // data messages given to the AF_XDP socket of their receive queue
	CLASSIFY_SPREAD,     // data messages given to the CPU of their flow, which takes them up the stack
	CLASSIFY_NO_SOCKET,  // data messages left to the kernel: their receive queue has no socket
	CLASSIFY_LONG,       // data messages left to the kernel: sockets do not take so long a frame, or only part of it came
	CLASSIFY_KEEPALIVE,  // keepalives left to the kernel
	CLASSIFY_INITIATION, // handshake initiations left to the kernel, within their budget
	CLASSIFY_OTHER,      // responses, cookies, and what is no WireGuard message, left to the kernel
	CLASSIFY_FOREIGN,    // packets to the port at an address that is not ours, left to the kernel
	CLASSIFY_FRAGMENT,   // IP fragments left to the kernel, as far as they show their ports
	CLASSIFY_MALFORMED,  // packets left to the kernel: their headers contradict each other about the length
	CLASSIFY_MARTIAN,    // data messages left to the kernel: no peer can have their source address
	CLASSIFY_UNSUMMED,   // data messages left to the kernel: another CPU would find their checksum, left to the device, wrong
	CLASSIFY_EVENTS,
};

#endif
