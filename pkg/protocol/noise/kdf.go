// SPDX-License-Identifier: Apache-2.0

package noise

import "golang.org/x/crypto/blake2s"

// HMAC is HMAC-BLAKE2s (RFC 2104 over RFC 7693's hash). crypto/hmac would do, but allocates two hash states and more
// for each of the some twenty calls of a handshake. It keeps no copy of a msg of up to 33 bytes; a longer one is copied to the heap.
func HMAC(key *[blake2s.Size]byte, msg []byte) [blake2s.Size]byte {
	var inner [blake2s.BlockSize + blake2s.Size + 1]byte // room for the longest input of a KDF
	var outer [blake2s.BlockSize + blake2s.Size]byte
	for i := range blake2s.BlockSize {
		inner[i], outer[i] = 0x36, 0x5c
	}
	for i, k := range key {
		inner[i] ^= k
		outer[i] ^= k
	}
	sum := blake2s.Sum256(append(inner[:blake2s.BlockSize], msg...))
	copy(outer[blake2s.BlockSize:], sum[:])
	clear(inner[:])
	clear(sum[:])
	defer clear(outer[:])
	return blake2s.Sum256(outer[:])
}

// KDF is the paper's KDF_n (§5.4), HKDF with HMAC-BLAKE2s: it fills each out in turn. An out may be the chain itself.
func KDF(chain *[blake2s.Size]byte, input []byte, out ...*[blake2s.Size]byte) {
	var block [blake2s.Size + 1]byte // the output before, and a number
	used := 0
	prk := HMAC(chain, input)
	for i, o := range out {
		block[used] = byte(i + 1)
		*o = HMAC(&prk, block[:used+1])
		used = copy(block[:], o[:])
	}
	clear(prk[:])
	clear(block[:])
}
