// SPDX-License-Identifier: Apache-2.0

package xsk

import "encoding/binary"

// metadataLen is the size of struct xsk_tx_metadata in bytes: 24 since Linux 6.15, 16 before. The kernel expects it
// that far in front of the frame: 8 bytes of flags, then csum_start and csum_offset.
const metadataLen = 24

// metadataChecksum requests a checksum (XDP_TXMD_FLAGS_CHECKSUM).
const metadataChecksum = 1 << 1

// requestChecksum writes a request in front of the frame. It returns false, and writes nothing, for a request that
// the kernel would reject.
func (t *tx) requestChecksum(d *Desc, start, offset uint16) bool {
	if !t.metadata || !t.isValidFrame(*d) || !checksumFits(*d, start, offset) {
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

// isValidRequest reports whether the kernel accepts the request in front of a valid frame.
func (t *tx) isValidRequest(d Desc) bool {
	m := t.umem[d.Addr-metadataLen : d.Addr]
	return t.metadata && binary.NativeEndian.Uint64(m) == metadataChecksum &&
		checksumFits(d, binary.NativeEndian.Uint16(m[8:]), binary.NativeEndian.Uint16(m[10:]))
}

// checksumFits reports whether the two bytes of the checksum lie in the frame. A packet where they do not blocks the
// kernel's TX ring.
func checksumFits(d Desc, start, offset uint16) bool {
	return uint32(start)+uint32(offset)+2 <= d.Len
}
