// SPDX-License-Identifier: Apache-2.0

// Package postquantum renews the preshared keys of two ropewalks by ML-KEM-768
// (FIPS 203), inside their sessions. docs/dev/post-quantum.md is the protocol. The package is pure:
// time and messages are passed in, and actions come out.
//
// The offerer is the initiator of the session in which an exchange runs, the answerer its responder. The result of an exchange is a key in the Ring
// of each. A handshake names one by its id, and mixes it into the configured preshared key (Ring.Effective). A handshake without is a base handshake.
//
// Instants are nanoseconds of a monotonic clock (int64). An Exchange is not safe for concurrent use. Types with secrets redact themselves.
//
// Begin reading at exchange.go.
//
// Not for other programs: it may change without notice.
package postquantum
