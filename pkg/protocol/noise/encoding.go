// SPDX-License-Identifier: Apache-2.0

package noise

// Keys are converted without tables and branches that depend on them: a table's entries that are
// in the cache afterwards tell of the key. encoding/base64 and encoding/hex use tables. wg(8)
// converts keys in the same way.

const (
	base64Len = (KeySize + 2) / 3 * 4
	hexLen    = KeySize * 2
)

// between returns v if low <= c <= high, else 0. All are bytes, and v is any number.
func between(c, low, high, v int) int { return ((low - 1 - c) & (c - high - 1)) >> 8 & v }

// fromBase64 returns the 6 bits of a base64 digit, -1 for any other byte.
func fromBase64(c byte) int {
	x := int(c)
	return -1 + between(x, 'A', 'Z', x-'A'+1) + between(x, 'a', 'z', x-'a'+27) + between(x, '0', '9', x-'0'+53) +
		between(x, '+', '+', 63) + between(x, '/', '/', 64)
}

// toBase64 returns the base64 digit of 6 bits.
func toBase64(v int) byte {
	return byte(v + 'A' + (25-v)>>8&('a'-'A'-26) - (51-v)>>8&('a'-'0'+26) - (61-v)>>8&('0'-'+'+10) + (62-v)>>8&('/'-'+'-1))
}

// fromHex returns the 4 bits of a hexadecimal digit of either case, -1 for any other byte.
func fromHex(c byte) int {
	x := int(c)
	return -1 + between(x, '0', '9', x-'0'+1) + between(x, 'A', 'F', x-'A'+11) + between(x, 'a', 'f', x-'a'+11)
}

// toHex returns the hexadecimal digit of 4 bits.
func toHex(v int) byte { return byte(v + '0' + (9-v)>>8&('a'-'0'-10)) }

// decodeBase64 decodes base64Len characters, and reports whether they are canonical. It always reads all of them.
func decodeBase64(key *[KeySize]byte, s string) bool {
	bad, bits, have, n := 0, 0, 0, 0
	for i := range base64Len - 1 {
		v := fromBase64(s[i])
		bad |= v
		bits, have = bits<<6|v&63, have+6
		if have >= 8 {
			have -= 8
			key[n] = byte(bits >> have)
			bits &= 1<<have - 1
			n++
		}
	}
	bad |= -bits                      // bits beyond the key's
	bad |= -int(s[base64Len-1] ^ '=') // the padding
	return bad >= 0
}

// encodeBase64 is the inverse of decodeBase64.
func encodeBase64(key *[KeySize]byte) string {
	var out [base64Len]byte
	defer clear(out[:])
	bits, have, n := 0, 0, 0
	for _, b := range key {
		bits, have = bits<<8|int(b), have+8
		for have >= 6 {
			have -= 6
			out[n] = toBase64(bits >> have & 63)
			n++
		}
		bits &= 1<<have - 1
	}
	out[n], out[n+1] = toBase64(bits<<(6-have)&63), '='
	return string(out[:])
}

// decodeHex decodes hexLen characters, and reports whether all are digits. It always reads all of them.
func decodeHex(key *[KeySize]byte, s string) bool {
	bad := 0
	for i := range key {
		high, low := fromHex(s[2*i]), fromHex(s[2*i+1])
		bad |= high | low
		key[i] = byte(high<<4 | low&15)
	}
	return bad >= 0
}

// encodeHex is the inverse of decodeHex.
func encodeHex(key *[KeySize]byte) string {
	var out [hexLen]byte
	defer clear(out[:])
	for i, b := range key {
		out[2*i], out[2*i+1] = toHex(int(b>>4)), toHex(int(b&15))
	}
	return string(out[:])
}
