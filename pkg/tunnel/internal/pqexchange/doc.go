// SPDX-License-Identifier: Apache-2.0

// Package pqexchange decides about the post-quantum exchanges with one peer. A Machine says when
// one begins, which key a handshake names, and when a session without a key is a downgrade. Package
// device sends, logs and counts what a Machine asks for. Package postquantum has the exchange
// itself.
package pqexchange
