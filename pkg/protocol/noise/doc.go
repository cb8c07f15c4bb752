// SPDX-License-Identifier: Apache-2.0

// Package noise is WireGuard's handshake: Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s with its keys, timestamps, MACs and
// cookies (WireGuard paper, §5; Noise protocol framework, revision 34). It is pure: randomness and time are passed in,
// messages are bytes, and nothing is logged.
//
// Instants are nanoseconds of a monotonic clock (int64); only Clock.Now takes the wall clock. Functions that consume
// messages return a drop.Reason, drop.None on success; functions that create them return an error.
//
// Keys.Exporter and Keys.Hash let other protocols derive keys from a session, with KDF. Timestamp.Naming carries the id of one (package postquantum).
//
// Secrets redact themselves in fmt, slog and encoding/json. fmt cannot call methods on unexported
// struct fields, so a struct elsewhere that keeps a secret in one must redact itself. Nor can fmt
// call them on the two misuses %p and %w, which go vet refuses.
package noise
