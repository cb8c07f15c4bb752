// SPDX-License-Identifier: Apache-2.0

package packet

// fragmentUnit is the unit of the IPv4 fragment offset, in bytes.
const fragmentUnit = 8

// WriteFragment writes to dst the fragment of at most limit bytes whose data begins offset bytes behind the header of ip
// (RFC 791, section 3.2). It returns the fragment's length, and where the data of the next one begins: the length of
// ip's data after the last. ip is an IPv4 packet without DF for which Length returned ok with its length, and may itself
// be a fragment. limit is at least IPv4MinMTU, and dst has room for limit bytes.
func WriteFragment(dst, ip []byte, offset, limit int) (n, next int) {
	header := writeFragmentHeader(dst, ip, offset)
	data := ip[IPv4(ip).HeaderLen():]
	flags := be16(ip[6:8]) &^ ipv4OffsetMask
	size := len(data) - offset
	if size > limit-header {
		size = (limit - header) &^ (fragmentUnit - 1)
		flags |= IPv4MoreFragments
	}
	n = header + copy(dst[header:limit], data[offset:offset+size])
	h := IPv4(dst)
	h.SetTotalLen(n)
	// A fragment that ends beyond 64 KiB stays one, which no host reassembles: its offset must not overflow into the flags.
	putBE16(h[6:8], flags|min(be16(ip[6:8])&ipv4OffsetMask+uint16(offset/fragmentUnit), ipv4OffsetMask))
	h.SetChecksum(0)
	h.SetChecksum(Checksum(h[:header]))
	return n, offset + size
}

// writeFragmentHeader writes the header of a fragment and returns its length. Those after the first have only the
// options whose copied flag is set.
func writeFragmentHeader(dst, ip []byte, offset int) int {
	header := IPv4(ip).HeaderLen()
	if offset == 0 {
		return copy(dst, ip[:header])
	}
	copy(dst, ip[:IPv4HeaderLen])
	n := IPv4HeaderLen + copyOptions(dst[IPv4HeaderLen:], ip[IPv4HeaderLen:header])
	dst[0] = 4<<4 | byte(n/4)
	return n
}

// copyOptions copies the options whose copied flag is set, up to the first malformed one. It pads them to full words, and
// returns their length.
func copyOptions(dst, options []byte) (n int) {
	const (
		endOfOptions = 0
		noOperation  = 1
		copied       = 0x80
	)
	for len(options) > 0 && options[0] != endOfOptions {
		size := 1
		if options[0] != noOperation {
			if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
				break
			}
			size = int(options[1])
		}
		if options[0]&copied != 0 {
			n += copy(dst[n:], options[:size])
		}
		options = options[size:]
	}
	for ; n%4 != 0; n++ {
		dst[n] = endOfOptions
	}
	return n
}
