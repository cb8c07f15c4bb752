// SPDX-License-Identifier: Apache-2.0

// Package peer holds the state machines of a WireGuard peer: the timers of handshakes, rekeying
// and keepalives (WireGuard paper, §6). It also has the rate limit of handshake messages per
// source address, and the allowed IPs. It is pure: it does no I/O, starts no goroutine and reads
// no clock.
//
// Times are int64 nanoseconds of a monotonic clock, greater than 0; 0 means never. Durations are int64 nanoseconds too.
//
// Not for other programs: it may change without notice.
package peer
