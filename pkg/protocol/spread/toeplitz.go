// SPDX-License-Identifier: Apache-2.0

package spread

import "encoding/binary"

// windowLen is the number of key bytes that one bit of input selects: the hash is 32 bits wide.
const windowLen = 4

// toeplitz returns the Toeplitz hash of input (Microsoft, "RSS hashing functions"). Each set bit
// adds by xor the 32 bits of the key that begin at the bit's position. The key must be at least
// windowLen bytes longer than the input. The function is linear: the hash of a message is the xor
// of the hashes of its parts. Each part is hashed with the key from the part's offset on.
func toeplitz(key, input []byte) uint32 {
	var hash uint32
	for i, b := range input {
		// 40 bits of key hold the windows of a byte's 8 bits.
		window := uint64(binary.BigEndian.Uint32(key[i:]))<<8 | uint64(key[i+windowLen])
		for bit := range 8 {
			hash ^= uint32(window>>(bit+1)) & -uint32(b>>bit&1)
		}
	}
	return hash
}
