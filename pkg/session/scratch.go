// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"

	"golang.org/x/crypto/chacha20poly1305"
)

// chunk is how many messages are opened between two updates of the replay window: the most that UDP GRO coalesces
// (UDP_GRO_CNT_MAX, Linux net/ipv4/udp_offload.c).
const chunk = 64

// Scratch is one worker's working memory for sealing and opening: what passes through the AEAD interface would else be
// allocated for each message. The zero Scratch is ready. One goroutine may use it at a time; it holds no secret.
type Scratch struct {
	nonce    [chacha20poly1305.NonceSize]byte
	counters [chunk]uint64 // of the authenticated messages of a chunk
	index    [chunk]uint8  // where in the chunk those are
	fresh    [chunk]bool
}

// setNonce makes counter the nonce: 32 zero bits, then 64 bits, little-endian (paper, §5.4.6).
func (s *Scratch) setNonce(counter uint64) []byte {
	binary.LittleEndian.PutUint64(s.nonce[4:], counter)
	return s.nonce[:]
}
