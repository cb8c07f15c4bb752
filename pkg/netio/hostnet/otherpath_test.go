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
		if got := sample(whole, tt.parts, nil); got != netip.MustParseAddr(tt.want) {
			t.Errorf("outside %v: got %v, want %s", tt.parts, got, tt.want)
		}
	}
}

func TestPrivatePrefixes(t *testing.T) {
	for prefix, want := range map[string]bool{
		"fc00::/7": true, "fd00::/8": true, "fc00::/6": false, "fe80::/10": true, "ff00::/8": true, "fe00::/7": false, "2000::/3": false, "::/0": false,
		"10.0.0.0/8": true, "10.0.0.0/7": false, "172.16.0.0/12": true, "172.0.0.0/8": false, "192.168.0.0/16": true, "169.254.0.0/16": true,
		"224.0.0.0/4": true, "224.0.0.0/3": false, "8.0.0.0/6": false, "0.0.0.0/0": false, "10.1.2.3/32": true,
	} {
		if got := isPrivate(netip.MustParsePrefix(prefix)); got != want {
			t.Errorf("%s: got %v, want %v", prefix, got, want)
		}
	}
}

func TestSampleAvoidsHostsWithRoutes(t *testing.T) {
	host := func(addr string) map[netip.Addr]bool { return map[netip.Addr]bool{netip.MustParseAddr(addr): true} }
	for _, tt := range []struct{ prefix, host, want string }{
		{"10.0.0.0/8", "10.128.0.0", "10.64.0.0"},
		{"10.0.0.0/8", "10.64.0.0", "10.128.0.0"},
		{"10.0.0.2/31", "10.0.0.3", "10.0.0.2"},
		{"10.0.0.2/32", "10.0.0.2", "10.0.0.2"},
	} {
		if got := sample(netip.MustParsePrefix(tt.prefix), nil, host(tt.host)); got != netip.MustParseAddr(tt.want) {
			t.Errorf("%s beside %s: got %v, want %s", tt.prefix, tt.host, got, tt.want)
		}
	}
}
