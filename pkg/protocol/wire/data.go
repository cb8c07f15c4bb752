// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// PutDataHeader writes a data message's header (paper §5.4.6) into b[:DataHeaderLen]. counter is the AEAD nonce.
func PutDataHeader(b []byte, receiver uint32, counter uint64) {
	_ = b[DataHeaderLen-1]
	binary.LittleEndian.PutUint32(b, uint32(TypeData))
	binary.LittleEndian.PutUint32(b[4:], receiver)
	binary.LittleEndian.PutUint64(b[8:], counter)
}

// DataReceiver is ReceiverIndex for a data message. b must have passed Classify as TypeData.
func DataReceiver(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:]) }

// Counter returns a data message's counter. b must have passed Classify as TypeData.
func Counter(b []byte) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

// Ciphertext returns a data message's encrypted packet with its tag, aliasing b. b must have passed Classify as
// TypeData.
func Ciphertext(b []byte) []byte { return b[DataHeaderLen:] }

// PaddedLen returns the length to which a plaintext of n bytes is padded: the next multiple of 16
// (paper §5.4.6), but at most the interface's mtu. So padding never makes a packet too large for
// the path. A plaintext longer than mtu is not padded. An mtu of 0 or less means unknown.
func PaddedLen(n, mtu int) int {
	padded := (n + PaddingMultiple - 1) &^ (PaddingMultiple - 1)
	if mtu > 0 && padded > mtu {
		return max(n, mtu)
	}
	return padded
}
