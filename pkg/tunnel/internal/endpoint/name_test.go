// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestEndpointThatWorksStays(t *testing.T) {
	at := func(n byte) config.Endpoint {
		return config.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 51820)}
	}
	a, b, c := at(1), at(2), at(3)
	scoped := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: 4}
	rescoped := config.Endpoint{AddrPort: scoped.AddrPort, Scope: 5}
	type list = []config.Endpoint
	for _, test := range []struct {
		about           string
		present         config.Endpoint
		known, resolved list
		failing         bool
		want            config.Endpoint
	}{
		{"works, still has the name", a, list{a}, list{b, a}, false, a},
		{"works, lost the name", a, list{a}, list{b}, false, b},
		{"works, roamed", c, list{a}, list{b}, false, c},
		{"fails, is the only one", a, list{a}, list{a}, true, a},
		{"fails, another one", a, list{a, b}, list{a, b, c}, true, b},
		{"fails, the last one", c, list{a}, list{a, b, c}, true, a},
		{"fails, lost the name", a, list{a}, list{b}, true, b},
		{"fails, roamed", c, list{a}, list{a}, true, a},
		{"works, known is unknown", a, nil, list{b}, false, a},
		{"works, link-local", scoped, list{scoped}, list{scoped}, false, scoped},
		{"works, the interface has another index", scoped, list{scoped}, list{rescoped}, false, rescoped},
	} {
		got, moved := choose(test.present, test.known, test.resolved, test.failing)
		if got != test.want || moved != (test.want != test.present) {
			t.Errorf("%s: got %v, moved %v, want %v", test.about, got, moved, test.want)
		}
	}
}
