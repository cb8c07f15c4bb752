// SPDX-License-Identifier: Apache-2.0

// Package offload joins and splits trains of inner packets as a TUN with offloads gives and takes them: Train splits
// what the kernel hands over as one TSO or USO packet, Merger makes such packets of single ones. It is pure: bytes in,
// bytes out, no I/O. It follows what Linux does in tcp_gso_segment, __udp_gso_segment, tcp_gro_receive and
// udp_gro_receive, so that both sides of a tunnel see what a NIC would have shown them.
package offload

import "encoding/binary"

// VnetHdrLen is the size in bytes of the virtio-net header in front of each packet of a TUN with IFF_VNET_HDR.
const VnetHdrLen = 10

// Flags of a VnetHdr.
const (
	// FlagNeedsCsum says that the checksum at CsumStart+CsumOffset holds only the sum of the pseudo-header and has to
	// be completed over all from CsumStart on.
	FlagNeedsCsum = 1
	// FlagDataValid says that the packet's checksum has been verified.
	FlagDataValid = 2
)

// GSO types of a VnetHdr.
const (
	GSONone  = 0
	GSOTCPv4 = 1
	GSOUDP   = 3 // IP fragmentation of one large datagram (UFO); never negotiated
	GSOTCPv6 = 4
	GSOUDPL4 = 5 // datagrams of equal size (USO), IPv4 and IPv6
	// GSOECN is a bit beside the TCP types: CWR is set, and belongs to the first segment only.
	GSOECN = 0x80
)

// VnetHdr is struct virtio_net_hdr (virtio 1.2, section 5.1.6) without num_buffers, as TUN uses it by default.
type VnetHdr struct {
	Flags      uint8
	GSOType    uint8
	HdrLen     uint16 // bytes of IP and transport header; a hint
	GSOSize    uint16 // payload bytes of each segment but the last
	CsumStart  uint16 // where summing starts, in bytes from the IP header
	CsumOffset uint16 // where the checksum is, in bytes from CsumStart
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
