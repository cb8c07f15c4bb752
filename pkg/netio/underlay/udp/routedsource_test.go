// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestSourceIsThatOfRoute looks up the host's own addresses, each of which is the source of messages to it.
func TestSourceIsThatOfRoute(t *testing.T) {
	requireNamespace(t)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	own := netip.MustParseAddr("2001:db8::1")
	network := &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(128, 128)}
	expect.NoError(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}))
	awaitLocalRoute(t, lo, network)
	p := open(t, Config{})
	for range 2 {
		for to, want := range map[netip.Addr]netip.Addr{
			netip.IPv6Loopback(): netip.IPv6Loopback(), own: own, netip.MustParseAddr("2001:db8:9::1"): {},
		} {
			if got := p.routed.source(&underlay.Endpoint{Dst: netip.AddrPortFrom(to, 9)}); got != want {
				t.Errorf("to %v: source address %v, want %v", to, got, want)
			}
		}
	}
}

// TestLostRoutedSourceIsNotUsed has an address that the host has lost since it was looked up.
func TestLostRoutedSourceIsNotUsed(t *testing.T) {
	requireNamespace(t)
	a, b := open(t, Config{}), open(t, Config{})
	to := loopback(b, true)
	a.routed.known = map[underlay.Destination]routedSource{to.Destination(): {netip.MustParseAddr("2001:db8::9"), time.Now().Add(time.Hour)}}
	if from := exchange(t, a, b, &to); from.Dst.Addr() != to.Dst.Addr() {
		t.Errorf("it left from %v, want %v", from.Dst, to.Dst.Addr())
	}
}

func TestLookupsAfterCloseFindNoSource(t *testing.T) {
	enterNamespace(t)
	p := open(t, Config{})
	to := loopback(p, true)
	expect.NoError(t, p.Close())
	if got := p.routed.source(&to); got.IsValid() {
		t.Errorf("got source address %v", got)
	}
}
