// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// key is one key of a section.
type key struct {
	name   string
	secret bool // the value stays out of errors
	quick  bool // wg-quick's or ropewalk's: white space matters in the name and in the value
	// set stores the value, which is not empty, and returns "" or what it should have been.
	set func(p *parser, value string) (want string)
	// list sets the value of a list item by item, in place of set.
	list func(p *parser, item string) (want string)
}

const wantKey = "a base64 key of 44 characters"

func interfaceKeys() []key {
	return []key{
		{name: "PrivateKey", secret: true, set: func(p *parser, v string) string {
			return setKey(&p.file.Interface.PrivateKey, v)
		}},
		{name: "ListenPort", set: func(p *parser, v string) string {
			return setNumber(&p.file.Interface.ListenPort, v, 10, 16, "0-65535")
		}},
		{name: "FwMark", set: setFwMark},
	}
}

func peerKeys() []key {
	return []key{
		{name: "PublicKey", set: setPublicKey},
		{name: "PresharedKey", secret: true, set: func(p *parser, v string) string {
			return setKey(&p.peer().PresharedKey, v)
		}},
		{name: "AllowedIPs", list: addAllowedIP},
		{name: "Endpoint", set: setEndpoint},
		{name: "PersistentKeepalive", set: setKeepalive},
	}
}

func setKey[K noise.Key](field **K, value string) string {
	k, err := noise.ParseBase64[K](value)
	if err != nil {
		return wantKey
	}
	*field = &k
	return ""
}

func setNumber[N uint16 | uint32](field **N, value string, base, bits int, want string) string {
	v, err := strconv.ParseUint(value, base, bits)
	if err != nil {
		return want
	}
	n := N(v)
	*field = &n
	return ""
}

func setFwMark(p *parser, value string) string {
	const want = `0-0xffffffff or "off"`
	if strings.EqualFold(value, "off") {
		value = "0"
	}
	if digits, ok := strings.CutPrefix(value, "0x"); ok {
		return setNumber(&p.file.Interface.FwMark, digits, 16, 32, want)
	}
	return setNumber(&p.file.Interface.FwMark, value, 10, 32, want)
}

func setPublicKey(p *parser, value string) string {
	k, err := noise.ParseBase64[noise.PublicKey](value)
	if err != nil {
		return wantKey
	}
	p.peer().PublicKey, p.hasKey = k, true
	return ""
}

func setKeepalive(p *parser, value string) string {
	if strings.EqualFold(value, "off") {
		value = "0"
	}
	return setNumber(&p.peer().Keepalive, value, 10, 16, `0-65535 or "off"`)
}

func setEndpoint(p *parser, value string) string {
	if _, err := splitEndpoint(value); err != nil {
		return "address:port, [IPv6 address]:port or name:port"
	}
	p.peer().Endpoint = value
	return ""
}

// addAllowedIP adds one entry. A sign makes the list modify what the peer has, instead of replacing it
// (wireguard-tools 1.0.20250521).
func addAllowedIP(p *parser, item string) string {
	peer := p.peer()
	text, remove := strings.CutPrefix(item, "-")
	add := false
	if !remove {
		text, add = strings.CutPrefix(item, "+")
	}
	prefix, err := parsePrefix(text)
	if err != nil {
		return "addresses with prefix lengths, such as 10.0.0.0/24 or fd00::/64"
	}
	if prefix != prefix.Masked() {
		p.file.Warnings = append(p.file.Warnings, "Warning: AllowedIP has nonzero host part: "+text)
	}
	peer.ModifyAllowedIPs = peer.ModifyAllowedIPs || add || remove
	peer.AllowedIPs = append(peer.AllowedIPs, config.AllowedIP{Prefix: prefix.Masked(), Remove: remove})
	return ""
}

// parsePrefix accepts an address alone, which means its full length, and leading zeros in the length, as wg(8) does.
func parsePrefix(s string) (netip.Prefix, error) {
	text, length, hasLength := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("address %s has a zone", addr)
	}
	bits := uint64(addr.BitLen())
	if hasLength {
		if bits, err = strconv.ParseUint(length, 10, 8); err != nil {
			return netip.Prefix{}, err
		}
	}
	prefix := netip.PrefixFrom(addr, int(bits))
	if !prefix.IsValid() {
		return netip.Prefix{}, fmt.Errorf("prefix length %d is too large", bits)
	}
	return prefix, nil
}
