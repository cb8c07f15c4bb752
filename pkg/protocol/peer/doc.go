// SPDX-License-Identifier: Apache-2.0

// Package peer holds the state machines of one WireGuard peer: when to handshake, rekey, keep alive and give up
// (WireGuard paper, §6), how much handshaking a source address is allowed, and which inner addresses belong to whom. All
// of it is pure: nothing here does I/O, starts a goroutine or reads a clock.
//
// Instants are int64 nanoseconds of one monotonic clock and greater than 0; 0 means "never" or "not". Durations are
// int64 nanoseconds too.
package peer
