// SPDX-License-Identifier: Apache-2.0

package offload

import "encoding/binary"

// VnetHdrLen is the size in bytes of the virtio-net header in front of each packet of a TUN with IFF_VNET_HDR.
const VnetHdrLen = 10

// Flags of a VnetHdr.
const (
	// FlagNeedsCsum means that the checksum at CsumStart+CsumOffset holds only the pseudo-header sum. It must be completed
	// over all bytes from CsumStart on.
	FlagNeedsCsum = 1
	// FlagDataValid means that the packet's checksum has been verified.
	FlagDataValid = 2
)

// GSO types of a VnetHdr.
const (
	GSONone  = 0
	GSOTCPv4 = 1
	GSOUDP   = 3 // IP fragmentation of one large datagram (UFO); never negotiated
	GSOTCPv6 = 4
	GSOUDPL4 = 5 // datagrams of equal size (USO), IPv4 and IPv6
	// GSOECN is a bit beside the TCP types: CWR is set, on the first segment only.
	GSOECN = 0x80
)

// VnetHdr is struct virtio_net_hdr (virtio 1.2, section 5.1.6) without num_buffers, as TUN uses it by default.
type VnetHdr struct {
	Flags      uint8
	GSOType    uint8
	HdrLen     uint16 // bytes of IP and transport header; a hint
	GSOSize    uint16 // payload bytes of each segment but the last
	CsumStart  uint16 // the start of the summed bytes, in bytes from the IP header
	CsumOffset uint16 // the offset of the checksum, in bytes from CsumStart
}

// Decode reads the header from the first VnetHdrLen bytes of b, in the machine's byte order. It panics if b is shorter.
func (h *VnetHdr) Decode(b []byte) {
	ne := binary.NativeEndian
	b = b[:VnetHdrLen]
	h.Flags, h.GSOType = b[0], b[1]
	h.HdrLen, h.GSOSize = ne.Uint16(b[2:4]), ne.Uint16(b[4:6])
	h.CsumStart, h.CsumOffset = ne.Uint16(b[6:8]), ne.Uint16(b[8:10])
}

// Encode writes the header to the first VnetHdrLen bytes of b, in the machine's byte order. It panics if b is shorter.
func (h *VnetHdr) Encode(b []byte) {
	ne := binary.NativeEndian
	b = b[:VnetHdrLen]
	b[0], b[1] = h.Flags, h.GSOType
	ne.PutUint16(b[2:4], h.HdrLen)
	ne.PutUint16(b[4:6], h.GSOSize)
	ne.PutUint16(b[6:8], h.CsumStart)
	ne.PutUint16(b[8:10], h.CsumOffset)
}
