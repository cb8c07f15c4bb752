// SPDX-License-Identifier: Apache-2.0

// Package toobig reads the ICMP errors that report the MTU of a path:
// Fragmentation Needed over IPv4 (RFC 1191) and Packet Too Big over IPv6 (RFC 4443, section 3.2).
//
// Anybody can send such a message. Its reader must find out by the quoted packet whether it
// answers a packet of this host.
//
// Not for other programs: it may change without notice.
package toobig
