// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// key is one key of a section.
type key struct {
	name    string
	secret  bool // errors do not quote the value
	quick   bool // wg-quick's or ropewalk's: white space matters in the name and in the value
	command bool // given several times, it adds up
	// set stores a value, which is not empty. For an invalid value it returns a description of valid ones, else "".
	set func(p *parser, value string) (want string)
	// list stores one item of a list. It replaces set.
	list func(p *parser, item string) (want string)
	doc  doc
}

// doc is the documentation of a key, in Markdown.
type doc struct {
	values, defaultValue, about string

	restart bool // a change needs `ropewalk down` and `up`
}

const wantKey = "a base64 key of 44 characters"

func interfaceKeys() []key {
	return []key{
		{name: "PrivateKey", secret: true, set: func(p *parser, v string) string {
			return setKey(&p.file.Interface.PrivateKey, v)
		}, doc: doc{
			values:       "key, base64",
			defaultValue: "the credential, else none",
			about:        "The local private key, as `ropewalk genkey` prints it. Without one the interface exists and carries nothing.",
		}},
		{name: "ListenPort", set: setListenPort, doc: doc{
			values:       "0–65535, name of a UDP service",
			defaultValue: "0: the kernel chooses",
			about:        "The local UDP port. Handshakes, and all data that is not spread, have it as source port.",
		}},
		{name: "FwMark", set: setFwMark, doc: doc{
			values:       "0–0xffffffff, `off`",
			defaultValue: "`off`; if a peer has a default route, the number of a free routing table",
			about:        "The mark (SO_MARK) of the tunnel's own datagrams, for routing rules.",
		}},
	}
}

func peerKeys() []key {
	return []key{
		{name: "PublicKey", set: setPublicKey, doc: doc{
			values:       "key, base64",
			defaultValue: "required",
			about:        "The peer's public key, which identifies the peer.",
		}},
		{name: "PresharedKey", secret: true, set: func(p *parser, v string) string {
			return setKey(&p.peer().PresharedKey, v)
		}, doc: doc{
			values:       "key, base64",
			defaultValue: "none",
			about:        "A secret that both ends share, mixed into each handshake, as `ropewalk genpsk` prints it.",
		}},
		{name: "AllowedIPs", list: addAllowedIP, doc: doc{
			values:       "list of prefixes",
			defaultValue: "none",
			about: "The peer's inner addresses: packets to them are sent to the peer, and packets from the peer must have one as source. " +
				"With `+` or `-` before each, prefixes are added to or removed from the present ones.",
		}},
		{name: "Endpoint", set: setEndpoint, doc: doc{
			values:       "`host:port`, `[address]:port`",
			defaultValue: "none: the peer is unreachable until it sends a packet",
			about:        "The peer's initial address. Afterwards the endpoint is the source of the peer's last authenticated packet. A name is resolved again while handshakes fail, and when its TTL has passed: [Operations](operations.md#names-of-endpoints).",
		}},
		{name: "PersistentKeepalive", set: setKeepalive, doc: doc{
			values:       "0–65535 s, `off`",
			defaultValue: "`off`",
			about:        "Interval of keepalive packets while nothing else is sent. Needed behind a NAT or a stateful firewall, usually 25.",
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

func setListenPort(p *parser, value string) string {
	n, err := parsePort(value)
	if err != nil {
		return "0-65535 or a UDP service"
	}
	p.file.Interface.ListenPort = &n
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

// addAllowedIP adds one entry. A sign makes the list modify the peer's allowed IPs, instead of replacing them
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

// parsePrefix also accepts an address alone, which means its full length, and leading zeros in the length, as wg(8) does.
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
