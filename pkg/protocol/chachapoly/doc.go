// SPDX-License-Identifier: Apache-2.0

// Package chachapoly is ChaCha20-Poly1305 (RFC 8439) as WireGuard's data messages use it (paper,
// §5.4.6), for many messages per call. There is no additional data, and the nonce is four zero
// bytes and a 64-bit little-endian counter. Messages are encrypted in place, with the tag after
// the text.
//
// On amd64 blocks of different messages share vector lanes, sixteen blocks of ChaCha20 at a time.
// Poly1305 takes eight messages at a time with AVX-512 and IFMA, and four with AVX2. With AVX2
// general registers authenticate long messages while vectors encrypt others. Otherwise, and where
// that is faster, golang.org/x/crypto processes the messages one by one. On arm64 one message is
// encrypted in NEON, four or eight blocks at a time, while the integer units authenticate another
// one. Time depends on the number and lengths of the messages and on which of them were valid, not
// on keys or contents.
//
// implementation.go has the table of implementations. The first use checks each implementation
// (selftest.go), and times it for each number and length of messages (choice.go). No
// implementation is used where another one is faster. traincipher_amd64.go and fused_amd64.go are
// the vector paths of amd64, and train_arm64.go is the vector path of arm64. Their kernels are the
// .s files, which are generated from _asm.
//
// The package is pure. Start reading at Key.Seal and Key.Open.
//
// Not for other programs: it may change without notice.
package chachapoly

//go:generate go run -C _asm ./arm64 -out ../neon_arm64.s
