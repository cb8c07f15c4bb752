// SPDX-License-Identifier: Apache-2.0

package packet

// UDPHeader is a view of a UDP header (RFC 768); at least UDPHeaderLen bytes.
type UDPHeader []byte

// UDPChecksumOffset is the offset in bytes of the checksum in the UDP header.
const UDPChecksumOffset = 6

// Len is the datagram's length in bytes, header included, by the header field.
func (h UDPHeader) Len() int { return int(be16(h[4:6])) }

// SetLen stores the datagram's length in bytes, header included.
func (h UDPHeader) SetLen(n int) { putBE16(h[4:6], uint16(n)) }

// Checksum is the checksum field in host order; 0 means that the sender computed none.
func (h UDPHeader) Checksum() uint16 { return be16(h[6:8]) }

// SetChecksum stores the checksum field in host order, unchanged; see UDPChecksum for the rule about 0.
func (h UDPHeader) SetChecksum(sum uint16) { putBE16(h[6:8], sum) }

// UDPChecksum returns the checksum field for a complete sum: its complement, or 0xffff where that is 0 (RFC 768).
func UDPChecksum(sum uint64) uint16 {
	if c := ^Fold(sum); c != 0 {
		return c
	}
	return 0xffff
}
