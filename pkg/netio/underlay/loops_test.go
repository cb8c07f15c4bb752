// SPDX-License-Identifier: Apache-2.0

package underlay_test

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

func TestLoopsKnowAddressesAndScopes(t *testing.T) {
	var l underlay.Loops
	at := func(addr string, port uint16, scope uint32) *underlay.Endpoint {
		return &underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), port), Scope: scope}
	}
	looping, local := at("192.0.2.1", 1, 0), at("fe80::1", 1, 7)
	want := func(when string, loops bool, list ...*underlay.Endpoint) {
		t.Helper()
		for _, to := range list {
			if got := l.IsLoop(to); got != loops {
				t.Errorf("%s: IsLoop(%v, scope %d) = %v", when, to.Dst, to.Scope, got)
			}
		}
	}
	want("empty", false, looping, local)
	for range 2 { // a second call changes nothing
		l.SetLoop(looping.Destination(), true)
		l.SetLoop(local.Destination(), true)
	}
	want("set", true, looping, at("192.0.2.1", 2, 0), local)
	want("set", false, at("192.0.2.2", 1, 0), at("198.51.100.1", 1, 0), at("fe80::1", 1, 8), at("fe80::2", 1, 7))
	for range 2 {
		l.SetLoop(looping.Destination(), false)
	}
	want("one removed", false, looping)
	want("one removed", true, local)
	l.SetLoop(local.Destination(), false)
	want("both removed", false, looping, local)
}

func TestLoopsAllocateNothing(t *testing.T) {
	var l underlay.Loops
	looping, other, alike := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.1:1")},
		underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.2:1")}, underlay.Endpoint{Dst: netip.MustParseAddrPort("198.51.100.1:1")}
	l.SetLoop(looping.Destination(), true)
	if n := testing.AllocsPerRun(100, func() {
		if !l.IsLoop(&looping) || l.IsLoop(&other) || l.IsLoop(&alike) {
			t.Fatal("wrong result")
		}
	}); n != 0 {
		t.Errorf("three lookups allocate %v times", n)
	}
}
