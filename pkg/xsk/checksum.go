// SPDX-License-Identifier: Apache-2.0

package xsk

import "encoding/binary"

// metadataLen is the size of struct xsk_tx_metadata (24 bytes since Linux 6.15, 16 before; the kernel looks for it that
// far in front of the frame): 8 bytes of flags, then csum_start, csum_offset.
const metadataLen = 24

// metadataChecksum asks for a checksum (XDP_TXMD_FLAGS_CHECKSUM).
const metadataChecksum = 1 << 1

// requestChecksum writes a request in front of the frame. It reports false, and writes nothing, for one that the kernel
// would refuse.
func (t *tx) requestChecksum(d *Desc, start, offset uint16) bool {
	if !t.metadata || !t.soundFrame(*d) || !checksumFits(*d, start, offset) {
		return false
	}
	m := t.umem[d.Addr-metadataLen : d.Addr]
	clear(m)
	binary.NativeEndian.PutUint64(m, metadataChecksum)
	binary.NativeEndian.PutUint16(m[8:], start)
	binary.NativeEndian.PutUint16(m[10:], offset)
	d.Options |= optionMetadata
	return true
}

// soundRequest reports whether the request in front of a sound frame is one that the kernel takes.
func (t *tx) soundRequest(d Desc) bool {
	m := t.umem[d.Addr-metadataLen : d.Addr]
	return t.metadata && binary.NativeEndian.Uint64(m) == metadataChecksum &&
		checksumFits(d, binary.NativeEndian.Uint16(m[8:]), binary.NativeEndian.Uint16(m[10:]))
}

// checksumFits reports whether a checksum's two bytes lie in the frame. The kernel never gets past a packet where they
// do not.
func checksumFits(d Desc, start, offset uint16) bool {
	return uint32(start)+uint32(offset)+2 <= d.Len
}
