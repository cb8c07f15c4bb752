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
