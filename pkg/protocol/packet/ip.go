// SPDX-License-Identifier: Apache-2.0

package packet

// IPv4 is a view of an IPv4 header (RFC 791); at least IPv4HeaderLen bytes.
type IPv4 []byte

// Masks of the 16-bit flags and fragment offset field.
const (
	IPv4DontFragment  = 0x4000
	IPv4MoreFragments = 0x2000
	ipv4OffsetMask    = 0x1fff
)

// HeaderLen is the header length in bytes, by the header field.
func (h IPv4) HeaderLen() int { return int(h[0]&0x0f) * 4 }

// TotalLen is the packet's length in bytes, by the header field.
func (h IPv4) TotalLen() int { return int(be16(h[2:4])) }

// SetTotalLen stores the packet's length in bytes.
func (h IPv4) SetTotalLen(n int) { putBE16(h[2:4], uint16(n)) }

// ID is the identification field.
func (h IPv4) ID() uint16 { return be16(h[4:6]) }

// SetID stores the identification field.
func (h IPv4) SetID(id uint16) { putBE16(h[4:6], id) }

// DontFragment reports whether DF is set.
func (h IPv4) DontFragment() bool { return h[6]&(IPv4DontFragment>>8) != 0 }

// IsFragment reports whether the packet is a fragment, the first one included.
func (h IPv4) IsFragment() bool { return be16(h[6:8])&(IPv4MoreFragments|ipv4OffsetMask) != 0 }

// Protocol is the protocol of the payload.
func (h IPv4) Protocol() Protocol { return Protocol(h[9]) }

// Checksum is the header checksum in host order.
func (h IPv4) Checksum() uint16 { return be16(h[10:12]) }

// ChecksumOK reports whether the checksum of a header without options is correct.
func (h IPv4) ChecksumOK() bool {
	return Fold(addHalves(be64(h[0:8]))+addHalves(be64(h[8:16]))+uint64(be32(h[16:20]))) == 0xffff
}

// SetChecksum stores the header checksum in host order.
func (h IPv4) SetChecksum(sum uint16) { putBE16(h[10:12], sum) }

// IPv6 is a view of an IPv6 header (RFC 8200); at least IPv6HeaderLen bytes.
type IPv6 []byte

// PayloadLen is the number of bytes after the fixed header, by the header field.
func (h IPv6) PayloadLen() int { return int(be16(h[4:6])) }

// SetPayloadLen stores the number of bytes after the fixed header.
func (h IPv6) SetPayloadLen(n int) { putBE16(h[4:6], uint16(n)) }

// NextHeader is the protocol number of the header after the fixed header.
func (h IPv6) NextHeader() Protocol { return Protocol(h[6]) }
