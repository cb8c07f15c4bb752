// SPDX-License-Identifier: Apache-2.0

package packet

// TCPHeader is a view of a TCP header (RFC 9293); at least TCPHeaderLen bytes.
type TCPHeader []byte

// TCPFlags are the control bits in the fourteenth byte of a TCP header.
type TCPFlags uint8

// The control bits (RFC 9293, section 3.1).
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Offsets in bytes of fields in the TCP header.
const (
	TCPFlagsOffset    = 13
	TCPChecksumOffset = 16
)

// Seq is the sequence number.
func (h TCPHeader) Seq() uint32 { return be32(h[4:8]) }

// SetSeq stores the sequence number.
func (h TCPHeader) SetSeq(seq uint32) { putBE32(h[4:8], seq) }

// HeaderLen is the header's length in bytes, options included, by the header field.
func (h TCPHeader) HeaderLen() int { return int(h[12]>>4) * 4 }

// Flags are the control bits.
func (h TCPHeader) Flags() TCPFlags { return TCPFlags(h[TCPFlagsOffset]) }

// SetFlags stores the control bits.
func (h TCPHeader) SetFlags(f TCPFlags) { h[TCPFlagsOffset] = byte(f) }

// Checksum is the checksum field in host order.
func (h TCPHeader) Checksum() uint16 { return be16(h[16:18]) }

// SetChecksum stores the checksum field in host order.
func (h TCPHeader) SetChecksum(sum uint16) { putBE16(h[16:18], sum) }
