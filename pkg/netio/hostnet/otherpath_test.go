// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"
	"testing"
)

func TestMiddleOfPrefix(t *testing.T) {
	for prefix, want := range map[string]string{
		"0.0.0.0/0": "128.0.0.0", "0.0.0.0/1": "64.0.0.0", "10.9.0.0/24": "10.9.0.128", "10.9.0.2/31": "10.9.0.3", "10.9.0.2/32": "10.9.0.2",
		"::/0": "8000::", "fd00::/9": "fd40::", "fd00::1/128": "fd00::1",
	} {
		if got := middle(netip.MustParsePrefix(prefix)).String(); got != want {
			t.Errorf("%s: got %s, want %s", prefix, got, want)
		}
	}
}

func TestTiledPrefixes(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	whole := netip.MustParsePrefix("10.0.0.0/8")
	for _, parts := range [][]netip.Prefix{prefixes("10.0.0.0/9", "10.128.0.0/9"), prefixes("10.0.0.0/9", "10.128.0.0/10", "10.192.0.0/10", "10.1.0.0/16"), prefixes("0.0.0.0/0")} {
		if !tiled(whole, parts) {
			t.Errorf("%v make up %v", parts, whole)
		}
	}
	for _, parts := range [][]netip.Prefix{nil, prefixes("10.0.0.0/9"), prefixes("10.0.0.0/9", "10.128.0.0/10", "10.192.0.0/11"), prefixes("11.0.0.0/9", "11.128.0.0/9")} {
		if tiled(whole, parts) {
			t.Errorf("%v do not make up %v", parts, whole)
		}
	}
	for _, tt := range []struct {
		parts []netip.Prefix
		want  string
	}{{nil, "10.128.0.0"}, {prefixes("10.128.0.0/16"), "10.64.0.0"}, {prefixes("10.0.0.0/9", "10.128.0.0/10"), "10.192.0.0"}, {prefixes("10.0.0.0/9", "10.128.0.0/9"), "10.128.0.0"}} {
		if got := sample(whole, tt.parts); got != netip.MustParseAddr(tt.want) {
			t.Errorf("outside %v: got %v, want %s", tt.parts, got, tt.want)
		}
	}
}
