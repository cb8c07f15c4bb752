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
	doc  doc
}

// doc is what people are told of a key, in Markdown.
type doc struct {
	values, byDefault, about string

	restart bool // a change needs `ropewalk down` and `up`; those that wg-quick has do all
}

const wantKey = "a base64 key of 44 characters"

func interfaceKeys() []key {
	return []key{
		{name: "PrivateKey", secret: true, set: func(p *parser, v string) string {
			return setKey(&p.file.Interface.PrivateKey, v)
		}, doc: doc{
			values:    "key, base64",
			byDefault: "the credential, else none",
			about:     "This end's private key, as `ropewalk genkey` makes it. Without one the interface is there and carries nothing.",
		}},
		{name: "ListenPort", set: func(p *parser, v string) string {
			return setNumber(&p.file.Interface.ListenPort, v, 10, 16, "0-65535")
		}, doc: doc{
			values:    "0–65535",
			byDefault: "0: the kernel chooses",
			about:     "The UDP port. Handshakes, and all data that is not spread, leave from it.",
		}},
		{name: "FwMark", set: setFwMark, doc: doc{
			values:    "0–0xffffffff, `off`",
			byDefault: "`off`; where a peer has a default route, a free table's number",
			about:     "The mark (SO_MARK) of the tunnel's own datagrams, for routing rules.",
		}},
	}
}

func peerKeys() []key {
	return []key{
		{name: "PublicKey", set: setPublicKey, doc: doc{
			values:    "key, base64",
			byDefault: "must be there",
			about:     "The peer's public key, and its name.",
		}},
		{name: "PresharedKey", secret: true, set: func(p *parser, v string) string {
			return setKey(&p.peer().PresharedKey, v)
		}, doc: doc{
			values:    "key, base64",
			byDefault: "none",
			about:     "A secret that both ends share, mixed into each handshake, as `ropewalk genpsk` makes it.",
		}},
		{name: "AllowedIPs", list: addAllowedIP, doc: doc{
			values:    "list of prefixes",
			byDefault: "none",
			about: "Inner addresses that are the peer's: what is sent to them goes to it, and only they are taken from it. " +
				"With `+` or `-` before each, these are added or removed.",
		}},
		{name: "Endpoint", set: setEndpoint, doc: doc{
			values:    "`host:port`, `[address]:port`",
			byDefault: "none: who has not been heard from cannot be reached",
			about:     "Where the peer is at first. A name is resolved once, when the file is read; from then on the peer is where it was last heard from.",
		}},
		{name: "PersistentKeepalive", set: setKeepalive, doc: doc{
			values:    "0–65535 s, `off`",
			byDefault: "`off`",
			about:     "How often to send something when nothing is sent: what a NAT or a firewall between needs, 25 as a rule.",
		}},
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
