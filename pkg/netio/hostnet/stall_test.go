// SPDX-License-Identifier: Apache-2.0

package hostnet

import "testing"

func TestWireGuardStallKnowsReleases(t *testing.T) {
	const debian = "#1 SMP PREEMPT_DYNAMIC Debian "
	for _, c := range []struct{ release, version, want string }{
		{"5.15.185", "", ""},
		{"5.15.186", "", "5.15.201"},
		{"5.15.200-generic", "", "5.15.201"},
		{"5.15.201", "", ""},
		{"6.1.163", "", "6.1.164"},
		{"6.6.94", "", "6.6.127"},
		{"6.12.73+bpo", "", "6.12.74"},
		{"6.12.74", "", ""},
		{"6.1.0-37-amd64", debian + "6.1.147-1 (2025-08-02)", "6.1.164"},
		{"6.1.0-44-amd64", debian + "6.1.164-1 (2026-03-09)", ""},
		{"6.12.0-rpi", debian + "1:6.12.47-1+rpt1 (2025-09-16)", "6.12.74"},
		{"6.1.0-37-amd64", "#1 SMP", ""},
		{"6.8.0-117-generic", "#117-Ubuntu SMP", ""},
		{"6.12", "", ""},
		{"", "", ""},
	} {
		if got := wireGuardStall(c.release, c.version); got != c.want {
			t.Errorf("release %q, version %q: fixed in %q, want %q", c.release, c.version, got, c.want)
		}
	}
}
