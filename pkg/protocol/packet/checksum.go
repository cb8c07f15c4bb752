// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"math/bits"
)

// Sum adds the bytes of b, as big-endian 16-bit words, to initial in ones' complement arithmetic (RFC 1071). The
// result is a partial sum: congruent to the true sum modulo 0xffff, less than initial + 0x10000, and 0 only if
// initial and all bytes are 0. A b of odd length is padded with a zero byte, so only the last piece of a message may
// be odd.
func Sum(b []byte, initial uint64) uint64 {
	// Both branches repeat the sum: one more call would make small packets 10 % slower.
	if useVector(len(b)) {
		return initial + uint64(bits.ReverseBytes16(Fold(wordsVector(b))))
	}
	return initial + uint64(bits.ReverseBytes16(Fold(wordsGeneric(b))))
}

// Fold reduces a partial sum to 16 bits. It maps only 0 to 0.
func Fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

// Checksum returns the Internet checksum of b in host order (RFC 1071); for a header with a correct checksum it is 0.
func Checksum(b []byte) uint16 { return ^Fold(Sum(b, 0)) }

// PseudoSum returns the partial sum of the pseudo-header (RFC 9293, section 3.1; RFC 8200, section
// 8.1) of a packet for which Length returned ok: its addresses, proto, and n, the length in bytes
// of transport header and payload. It reads the destination from the IP header. In an IPv6 packet
// with a routing header, that address is not the final destination, and the sum is not the
// sender's.
func PseudoSum(ip []byte, proto Protocol, n int) uint64 {
	sum := uint64(proto) + uint64(n)
	if ip[0]>>4 == 4 {
		return sum + addHalves(be64(ip[12:20]))
	}
	return sum + addHalves(be64(ip[8:16])) + addHalves(be64(ip[16:24])) + addHalves(be64(ip[24:32])) + addHalves(be64(ip[32:40]))
}

// addHalves returns the sum of a word's two halves, to which others can be added without overflow. It is congruent to the
// sum of the word's 16-bit words, because 2^16 is 1 modulo 0xffff.
func addHalves(w uint64) uint64 { return w>>32 + w&0xffffffff }

// wordsGeneric returns the sum of b as little-endian words, modulo 0xffff. Words of 64 bits have the same sum as words of 16
// bits (see addHalves). It is 0 only if all bytes are 0. Swapping the bytes of the folded sum gives the big-endian sum (RFC 1071,
// section 2).
//
// Each iteration starts a new carry chain, so that iterations overlap in the processor. One chain
// through all of b would cost a cycle per word.
func wordsGeneric(b []byte) uint64 {
	le := binary.LittleEndian
	var sum, carries uint64
	for len(b) >= 64 {
		s, c := bits.Add64(le.Uint64(b[0:8]), le.Uint64(b[8:16]), 0)
		s, c = bits.Add64(s, le.Uint64(b[16:24]), c)
		s, c = bits.Add64(s, le.Uint64(b[24:32]), c)
		s, c = bits.Add64(s, le.Uint64(b[32:40]), c)
		s, c = bits.Add64(s, le.Uint64(b[40:48]), c)
		s, c = bits.Add64(s, le.Uint64(b[48:56]), c)
		s, c = bits.Add64(s, le.Uint64(b[56:64]), c)
		sum, c = bits.Add64(sum, s, c)
		carries += c
		b = b[64:]
	}
	sum, c := bits.Add64(sum, carries, 0)
	// Adding the carry cannot overflow: if c is 1, sum is less than carries.
	return tail(b, sum+c)
}

// tail adds the last bytes, fewer than 64, to sum.
func tail(b []byte, sum uint64) uint64 {
	le := binary.LittleEndian
	var c, carries uint64
	for len(b) >= 8 {
		sum, c = bits.Add64(sum, le.Uint64(b[0:8]), 0)
		carries += c
		b = b[8:]
	}
	var last uint64
	if len(b) >= 4 {
		last = uint64(le.Uint32(b[0:4]))
		b = b[4:]
	}
	switch len(b) {
	case 3:
		last += uint64(b[0]) + uint64(b[1])<<8 + uint64(b[2])
	case 2:
		last += uint64(b[0]) + uint64(b[1])<<8
	case 1:
		last += uint64(b[0])
	}
	sum, c = bits.Add64(sum, last+carries, 0)
	return sum + c // as above
}
