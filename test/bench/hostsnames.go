// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// hostsNames hides both hosts in a text that others get.
type hostsNames struct {
	known *regexp.Regexp    // nil for none
	of    map[string]string // A or B, by a destination, name or address of it
}

// newHostsNames knows ssh's destinations, the hosts' names in them, and the addresses that are measured.
func newHostsNames(destinations [2]string, addrs [2]netip.Addr) hostsNames {
	n := hostsNames{of: map[string]string{}}
	for i, d := range destinations {
		host := strings.TrimPrefix(d, "ssh://")
		host = host[strings.LastIndex(host, "@")+1:]
		if strings.HasPrefix(d, "ssh://") {
			host = strings.Trim(portSuffix.ReplaceAllString(host, ""), "[]")
		}
		for _, name := range []string{d, host, strings.ToLower(host), addrs[i].String()} {
			n.of[name] = cmp.Or(n.of[name], hostNames[i])
		}
	}
	longest := slices.SortedFunc(maps.Keys(n.of), func(a, b string) int { return len(b) - len(a) })
	for i, name := range longest {
		longest[i] = `\b` + regexp.QuoteMeta(name) + `\b`
	}
	n.known = regexp.MustCompile(strings.Join(longest, "|"))
	return n
}

var (
	portSuffix  = regexp.MustCompile(`:\d+$`)
	addressText = regexp.MustCompile(`\b\d+(\.\d+){3}\b|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*[0-9A-Fa-f:]`)
)

// hide replaces what it knows of a host by A or B, and other addresses by a word. Addresses that each host has stay.
func (n *hostsNames) hide(text string) string {
	if n.known != nil {
		text = n.known.ReplaceAllStringFunc(text, func(s string) string { return n.of[s] })
	}
	return addressText.ReplaceAllStringFunc(text, func(s string) string {
		if a, err := netip.ParseAddr(s); err != nil || a.IsUnspecified() || a.IsLoopback() {
			return s
		}
		return "ADDRESS"
	})
}

// hideAll is hide for each text of a list.
func (n *hostsNames) hideAll(list []string) {
	for i := range list {
		list[i] = n.hide(list[i])
	}
}
