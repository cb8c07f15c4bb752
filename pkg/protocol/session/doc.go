// SPDX-License-Identifier: Apache-2.0

// Package session holds what an established WireGuard session needs for every packet train: key pairs, nonce blocks,
// the replay window, sealing and opening of whole trains, and the table from receiver index to session. Everything that
// lanes call is lock-free and allocates nothing. The package knows no socket and no clock: instants are passed in, as
// nanoseconds of a monotonic clock of the caller's choice.
//
// It does not make sessions (package noise) and does not decide when to replace them (package peer).
package session
