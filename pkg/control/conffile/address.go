// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"errors"
	"math"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// wg(8) gives the host of an endpoint to getaddrinfo(3), and wg-quick(8) gives an Address to ip(8). Both know forms of an IPv4 address besides
// a dotted quad. The two read them differently: 10.1 is 10.0.0.1 to getaddrinfo, and 10.1.0.0 to ip.

var errNoAddress = errors.New("no address")

// parseHost parses a numeric host as getaddrinfo does: as an IPv6 address, perhaps with a zone, or by the rules of inet_aton(3).
func parseHost(s string) (netip.Addr, bool) {
	if strings.Contains(s, ":") {
		addr, err := netip.ParseAddr(s)
		return addr, err == nil
	}
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	last := len(parts) - 1
	var value uint64
	for i, part := range parts {
		n, err := parseC(part)
		width := 8
		if i == last {
			width = 8 * (4 - last)
		}
		if err != nil || n>>width != 0 {
			return netip.Addr{}, false
		}
		value = value<<width | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// parseInterfaceAddress parses an address with or without a prefix length as ip(8) does (iproute2, lib/utils.c, get_prefix_1). Bytes that
// an IPv4 address lacks are zero. The length may be a netmask.
func parseInterfaceAddress(s string) (netip.Prefix, error) {
	text, length, hasLength := strings.Cut(s, "/")
	addr, err := parseIPAddress(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	n := addr.BitLen()
	if hasLength {
		if n, err = parseLength(length); err != nil {
			return netip.Prefix{}, err
		}
	}
	if n > addr.BitLen() {
		return netip.Prefix{}, errNoAddress
	}
	return netip.PrefixFrom(addr, n), nil
}

// parseIPAddress parses an address as ip(8) does (get_addr_1).
func parseIPAddress(s string) (netip.Addr, error) {
	if strings.Contains(s, ":") {
		addr, err := netip.ParseAddr(s)
		if err == nil && addr.Zone() != "" {
			err = errNoAddress
		}
		return addr, err
	}
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, errNoAddress
	}
	var bytes [4]byte
	for i, part := range parts {
		n, err := parseC(part)
		if err != nil || n > 255 {
			return netip.Addr{}, errNoAddress
		}
		bytes[i] = byte(n)
	}
	return netip.AddrFrom4(bytes), nil
}

// parseLength parses a prefix length or a netmask as ip(8) does (get_netmask). A number is a
// length, even if no address has that length.
func parseLength(s string) (int, error) {
	if n, err := parseC(strings.TrimPrefix(s, "+")); err == nil {
		return int(min(n, math.MaxInt32)), nil
	}
	mask, err := parseIPAddress(s)
	if err != nil || !mask.Is4() {
		return 0, errNoAddress
	}
	b := mask.As4()
	host := ^(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
	if host&(host+1) != 0 {
		return 0, errNoAddress
	}
	return bits.LeadingZeros32(host), nil
}

// parseC parses an unsigned number as strtoul(3) does with base 0: 0x begins a hexadecimal number, and 0 an octal one.
func parseC(s string) (uint64, error) {
	base := 10
	switch {
	case len(s) > 2 && s[0] == '0' && s[1]|0x20 == 'x':
		s, base = s[2:], 16
	case len(s) > 1 && s[0] == '0':
		s, base = s[1:], 8
	}
	return strconv.ParseUint(s, base, 32)
}
