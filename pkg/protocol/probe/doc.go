// SPDX-License-Identifier: Apache-2.0

// Package probe tests the path to a peer: which source ports it admits, and the largest IP packet
// that crosses it without fragmentation. Prober is a state machine without I/O and without a
// clock. Its owner sends the probes, and passes on the answers and the number of messages that it
// has sent.
//
// Data is the probe, and the peer's counters are the acknowledgement. The peer counts the messages that arrive from each source port. While
// messages have been sent that no report covers, a small request leaves from the listen port, and the peer answers with its counts. So one
// message tells about all ports, and none is sent while nothing is.
//
// A port is blocked if three reports in a row count nothing from it, although messages left from
// it before each request. These messages are data first, and then small probes. An outage blocks
// no port, since without the answer to a request nothing is concluded. If a message of a blocked
// port arrives late, the port opens, and needs more such reports to be blocked again.
//
// The search for the path MTU is Datagram Packetization Layer Path MTU Discovery (RFC 8899). It
// begins with the largest packet that data can have. One answer completes it. If three such probes
// are lost while a probe of the base size is answered, the path is a black hole (section 4.3).
// Then data is limited to the base size, and a search between the two sizes follows, of common
// MTUs first. Afterwards the size is tried again on a path where messages are lost, and a larger
// one from time to time (PMTU_RAISE_TIMER).
//
// When the search is complete, a train of two probes is sent, which the kernel or the device divides. If three such trains are lost while a
// single message is answered, trains do not arrive, and the owner sends messages one by one.
//
// Flows may take several paths, one per source port, numbered from 1. Path 0 is the listen port's. The smallest size of all counts for all.
//
// Not for other programs: it may change without notice.
package probe
