// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"net/netip"
	"strconv"
	"strings"
)

// quickKeys are the keys that wg-quick(8) adds to [Interface].
func quickKeys() []key {
	hook := func(name, when string, list func(*Interface) *[]string) key {
		return key{name: name, quick: true, set: func(p *parser, v string) string {
			commands := list(&p.file.Interface)
			*commands = append(*commands, v)
			return ""
		}, doc: doc{
			values:    "command",
			byDefault: "none",
			about:     "What bash, or else sh, runs " + when + "; `%i` is the interface. May be given several times.",
		}}
	}
	return []key{
		{name: "Address", quick: true, list: addAddress, doc: doc{
			values:    "list of addresses",
			byDefault: "none",
			about:     "The interface's own inner addresses, with their prefix lengths.",
		}},
		{name: "DNS", quick: true, list: addDNS, doc: doc{
			values:    "list of addresses and domains",
			byDefault: "none",
			about:     "Servers and search domains that resolvconf is told while the interface is up.",
		}},
		{name: "MTU", quick: true, set: setMTU, doc: doc{
			values:    strconv.Itoa(minMTU) + "–" + strconv.Itoa(maxMTU) + " bytes",
			byDefault: "that towards the endpoints, else of the default route, less 80",
			about:     "The tunnel's MTU. Set it where paths to peers differ.",
		}},
		{name: "Table", quick: true, set: setTable, doc: doc{
			values:    "`auto`, `off`, a table",
			byDefault: "`auto`",
			about:     "Where routes to `AllowedIPs` go: the main table, with rules for default routes; nowhere; or the table with this number or name.",
		}},
		{name: "SaveConfig", quick: true, set: setSaveConfig, doc: doc{
			values:    "`true`, `false`",
			byDefault: "`false`",
			about:     "Whether the file is written anew, with what the interface has by then, when it goes down. Comments are lost.",
		}},
		hook("PreUp", "before the interface is there", func(i *Interface) *[]string { return &i.PreUp }),
		hook("PostUp", "when all is done", func(i *Interface) *[]string { return &i.PostUp }),
		hook("PreDown", "before anything is undone", func(i *Interface) *[]string { return &i.PreDown }),
		hook("PostDown", "when all is undone", func(i *Interface) *[]string { return &i.PostDown }),
	}
}

// items splits a list as wg-quick does, at commas and white space.
func items(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || strings.ContainsRune(space, r) })
}

func addAddress(p *parser, item string) string {
	prefix, err := parsePrefix(item)
	if err != nil {
		return "addresses, with or without prefix length"
	}
	p.file.Interface.Address = append(p.file.Interface.Address, prefix)
	return ""
}

// addDNS takes what is no address for a search domain. wg-quick decides by the characters: digits and dots, or a colon,
// make an address; such an item has to be a valid one here.
func addDNS(p *parser, item string) string {
	addr, err := netip.ParseAddr(item)
	switch {
	case err == nil:
		p.file.Interface.DNS = append(p.file.Interface.DNS, addr)
	case strings.Trim(item, "0123456789.") == "" || strings.Contains(item, ":"):
		return "addresses and search domains"
	default:
		p.file.Interface.DNSSearch = append(p.file.Interface.DNSSearch, item)
	}
	return ""
}

// The smallest MTU the kernel accepts for IPv4 (RFC 791) and the largest it has for a TUN.
const (
	minMTU = 68
	maxMTU = 65535
)

func setMTU(p *parser, value string) string {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n < minMTU || n > maxMTU {
		return strconv.Itoa(minMTU) + "-" + strconv.Itoa(maxMTU)
	}
	p.file.Interface.MTU = int(n)
	return ""
}

func setTable(p *parser, value string) string {
	if strings.ContainsAny(value, space) {
		return `"auto", "off" or one routing table`
	}
	p.file.Interface.Table = value
	return ""
}

func setSaveConfig(p *parser, value string) string {
	switch strings.ToLower(value) {
	case "true":
		p.file.Interface.SaveConfig = true
	case "false":
		p.file.Interface.SaveConfig = false
	default:
		return `"true" or "false"`
	}
	return ""
}
