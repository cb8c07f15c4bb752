// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// quickKeys are the keys that wg-quick(8) adds to [Interface].
func quickKeys() []key {
	hook := func(name, when string, list func(*Interface) *[]string) key {
		return key{name: name, quick: true, command: true, set: func(p *parser, v string) string {
			commands := list(&p.file.Interface)
			*commands = append(*commands, v)
			return ""
		}, doc: doc{
			values:       "command",
			defaultValue: "none",
			about:        "Command that bash, or else sh, runs " + when + "; `%i` is the interface. May be given several times.",
			restart:      strings.HasSuffix(name, "Up"),
		}}
	}
	return []key{
		{name: "Address", quick: true, list: addAddress, doc: doc{
			values:       "list of addresses",
			defaultValue: "none",
			about:        "The interface's inner addresses, with their prefix lengths or netmasks.",
		}},
		{name: "DNS", quick: true, list: addDNS, doc: doc{
			values:       "list of addresses and domains",
			defaultValue: "none",
			about:        "DNS servers and search domains, set with resolvconf while the interface is up. Systemd's resolvconf also takes `address:port`.",
		}},
		{name: "MTU", quick: true, set: setMTU, doc: doc{
			values:       strconv.Itoa(minMTU) + "–" + strconv.Itoa(maxMTU) + " bytes",
			defaultValue: "the path MTU of the endpoints, else of the default route, minus 80; with IPv6 at least 1280",
			about:        "The interface's MTU. Set it if path MTUs of peers differ.",
		}},
		{name: "Table", quick: true, set: setTable, doc: doc{
			values:       "`auto`, `off`, a table",
			defaultValue: "`auto`",
			about:        "The table for routes to `AllowedIPs`: `auto` for the main table, with rules for default routes; `off` for no routes; or the number or name of a table.",
		}},
		{name: "SaveConfig", quick: true, set: setSaveConfig, doc: doc{
			values:       "`true`, `false`",
			defaultValue: "`false`",
			about:        "Whether `down` replaces the file with the present configuration of the interface. Comments are lost.",
		}},
		hook("PreUp", "before the interface is created", func(i *Interface) *[]string { return &i.PreUp }),
		hook("PostUp", "after everything else", func(i *Interface) *[]string { return &i.PostUp }),
		hook("PreDown", "before anything is removed", func(i *Interface) *[]string { return &i.PreDown }),
		hook("PostDown", "after everything is removed", func(i *Interface) *[]string { return &i.PostDown }),
	}
}

// splitList splits a list as wg-quick does, at commas and white space.
func splitList(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || strings.ContainsRune(space, r) })
}

func addAddress(p *parser, item string) string {
	prefix, err := parseInterfaceAddress(item)
	if err != nil {
		return "addresses, with or without prefix length or netmask"
	}
	p.file.Interface.Address = append(p.file.Interface.Address, prefix)
	return ""
}

// addDNS adds a name server or a search domain. wg-quick takes an item of digits and dots, or with a
// colon, for a name server. Such an item must be a valid one here.
func addDNS(p *parser, item string) string {
	server, ok := ParseNameserver(item)
	switch {
	case ok:
		p.file.Interface.DNS = append(p.file.Interface.DNS, server)
	case strings.Trim(item, "0123456789.") == "" || strings.Contains(item, ":"):
		return "addresses, with or without port, and search domains"
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

// setMTU reads a number as ip(8) does, to which wg-quick gives it: 02614 is 1420.
func setMTU(p *parser, value string) string {
	n, err := parseC(strings.TrimPrefix(value, "+"))
	if err != nil || n < minMTU || n > maxMTU {
		return strconv.Itoa(minMTU) + "-" + strconv.Itoa(maxMTU)
	}
	p.file.Interface.MTU = int(n)
	return ""
}

// ipv6MinMTU is the minimum MTU of a link with IPv6 addresses (RFC 8200, section 5).
const ipv6MinMTU = 1280

// checkMTU reports an MTU with which the kernel turns IPv6 off, together with IPv6 addresses or routes.
func (p *parser) checkMTU() {
	conf := &p.file.Interface
	if conf.MTU == 0 || conf.MTU >= ipv6MinMTU {
		return
	}
	what, prefixes := "Address", conf.Address
	isIPv6 := func(a netip.Prefix) bool { return a.Addr().Is6() && !a.Addr().Is4In6() }
	if !slices.ContainsFunc(prefixes, isIPv6) && conf.Table != "off" {
		what = "AllowedIPs"
		for i := range p.file.Peers {
			for _, a := range p.file.Peers[i].AllowedIPs {
				prefixes = append(prefixes[:len(prefixes):len(prefixes)], a.Prefix)
			}
		}
	}
	if i := slices.IndexFunc(prefixes, isIPv6); i >= 0 {
		p.errs = append(p.errs, &LineError{
			File: p.name, Line: p.given["MTU"], Key: "MTU", Want: fmt.Sprintf("%d or more with the IPv6 %s %v", ipv6MinMTU, what, prefixes[i]), Got: fmt.Sprintf("\"%d\"", conf.MTU),
		})
	}
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
