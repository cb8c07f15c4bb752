// SPDX-License-Identifier: Apache-2.0

// Package packet reads and writes inner packets. It has views of IPv4, IPv6, TCP and UDP headers,
// Internet checksums, the symmetric flow hash, ICMP errors, and IPv4 fragments.
//
// It is pure: bytes in, bytes out. Nothing in it allocates, keeps state or retains a slice, so any goroutine may call all
// of it. Start reading at Length and FindTransport. The vector checksum in words_amd64.s is generated from _asm.
//
// Not for other programs: it may change without notice.
package packet
