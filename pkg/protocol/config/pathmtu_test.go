// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestPathMTUString(t *testing.T) {
	for want, p := range map[string]config.PathMTU{
		"":                                 {State: config.PathMTUUnknown},
		"probing":                          {State: config.PathMTUSearching},
		"no probe of any size is answered": {State: config.PathMTUUnreachable},
		"1480 bytes, confirmed by probes":  {State: config.PathMTUConfirmed, Bytes: 1480},
		"1280 bytes, probing larger sizes": {State: config.PathMTUSearching, Bytes: 1280},
		"1500 bytes, the MTU of the route": {State: config.PathMTURoute, Bytes: 1500},
		"1400 bytes, reported by a router, inner packets of at most 1328 bytes":                    {State: config.PathMTUICMP, Bytes: 1400, InnerBytes: 1328},
		"1300 bytes, confirmed by probes, inner packets of at most 1232 bytes: too small for IPv6": {State: config.PathMTUConfirmed, Bytes: 1300, InnerBytes: 1232},
	} {
		if got := p.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
