// SPDX-License-Identifier: Apache-2.0

// Package session implements established WireGuard sessions. It has key pairs, reservation of
// counters, the replay window, sealing and opening of whole trains, and the table from receiver
// index to session. All functions that lanes call are lock-free and allocate nothing. The package
// has no sockets and no clock: the caller passes times, in nanoseconds of a monotonic clock.
//
// Package noise creates the session keys. Package peer decides when to replace a session.
//
// Not for other programs: it may change without notice.
package session
