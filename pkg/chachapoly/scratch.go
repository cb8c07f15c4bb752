// SPDX-License-Identifier: Apache-2.0

package chachapoly

import "golang.org/x/crypto/chacha20poly1305"

// Scratch is one goroutine's working memory for Seal and Open, some 14 KiB: it saves every allocation. The zero Scratch
// is ready, and between calls it holds neither keys nor keystream nor text.
type Scratch struct {
	nonce [chacha20poly1305.NonceSize]byte
	train trainScratch
}
