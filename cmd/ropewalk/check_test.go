// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

func TestCheckWarnsOfDNSWithoutResolvconf(t *testing.T) {
	f := &conffile.File{Interface: conffile.Interface{DNS: []netip.Addr{netip.MustParseAddr("192.0.2.53")}}}
	if got := dnsWarnings(f, quick.Tools{}); len(got) != 1 || !strings.Contains(got[0], "resolvconf is not installed") {
		t.Errorf("got %q, want a warning", got)
	}
	if got := dnsWarnings(f, quick.Tools{Resolvconf: "/sbin/resolvconf"}); len(got) > 0 {
		t.Errorf("with resolvconf: got %q", got)
	}
	if got := dnsWarnings(new(conffile.File), quick.Tools{}); len(got) > 0 {
		t.Errorf("without DNS: got %q", got)
	}
}
