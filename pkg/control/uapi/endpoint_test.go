// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

func TestAddrsKeepZones(t *testing.T) {
	got := uapi.Addrs([]net.IPAddr{{IP: net.ParseIP("192.0.2.1")}, {IP: net.ParseIP("fe80::1"), Zone: "eth7"}, {IP: net.IP{1}}})
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1%eth7")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
