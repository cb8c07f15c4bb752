// SPDX-License-Identifier: Apache-2.0

// Package packet reads and writes the headers of inner packets: IPv4, IPv6, TCP and UDP views, Internet checksums, and
// the symmetric flow hash.
//
// It is pure: bytes in, bytes out. Nothing in it allocates, keeps state or retains a slice, so any goroutine may call all
// of it. Start reading at Length and FindTransport. The vector checksum in words_amd64.s is generated from _asm.
package packet
