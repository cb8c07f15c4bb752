// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestNetworkdThatRemovesRulesIsWarnedOf(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, tt := range map[string]struct {
		root    fstest.MapFS
		conf    string
		warning bool
	}{
		"no networkd":          {fstest.MapFS{"run/systemd/netif/links/2": file("")}, "[Peer]\n$KEY\nAllowedIPs = 0.0.0.0/0", false},
		"no default route":     {fstest.MapFS{networkdState: file("")}, "[Peer]\n$KEY\nAllowedIPs = 10.0.0.0/8", false},
		"default route":        {fstest.MapFS{networkdState: file("")}, "[Peer]\n$KEY\nAllowedIPs = 0.0.0.0/0", true},
		"IPv6 default route":   {fstest.MapFS{networkdState: file("")}, "[Peer]\n$KEY\nAllowedIPs = 10.0.0.0/8, ::/0", true},
		"a table of its own":   {fstest.MapFS{networkdState: file("")}, "[Interface]\nTable = 5\n[Peer]\n$KEY\nAllowedIPs = ::/0", false},
		"kept by a drop-in":    {fstest.MapFS{networkdState: file(""), "etc/systemd/networkd.conf.d/10-x.conf": file("[Network]\nManageForeignRoutingPolicyRules=no\n")}, "[Peer]\n$KEY\nAllowedIPs = ::/0", false},
		"kept by the file":     {fstest.MapFS{networkdState: file(""), "etc/systemd/networkd.conf": file("[Network]\n ManageForeignRoutingPolicyRules = False\n")}, "[Peer]\n$KEY\nAllowedIPs = ::/0", false},
		"the default, spelled": {fstest.MapFS{networkdState: file(""), "etc/systemd/networkd.conf": file("#ManageForeignRoutingPolicyRules=no\nManageForeignRoutingPolicyRules=yes\n")}, "[Peer]\n$KEY\nAllowedIPs = ::/0", true},
	} {
		f, err := conffile.Parse(name, strings.NewReader(strings.ReplaceAll(tt.conf, "$KEY", "PublicKey = "+manualPublic)), conffile.Quick)
		expect.NoError(t, err)
		if got := networkdWarnings(tt.root, f); (len(got) > 0) != tt.warning {
			t.Errorf("%s: got %q, want a warning: %v", name, got, tt.warning)
		}
	}
}
