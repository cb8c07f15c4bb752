// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// withOuterFragments is ropewalk that lets the network fragment its messages, so that a message fits into any tunnel.
var withOuterFragments = implementation{name: ropewalk.name, need: ropewalk.need, start: func(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--outer-fragments", "on", ifname)
}}

// loopEndpoint is an address of the right host behind the left one's default route.
var loopEndpoint = netip.MustParsePrefix("203.0.113.1/32")

// newLoopLab starts two hosts with a session. The right one's endpoint may be routed into the tunnel.
func newLoopLab(t *testing.T, p pairing) *lab {
	t.Helper()
	l := newLab(t, p, false)
	expect.NoError(t, l.right.host.addAddress(cable, loopEndpoint))
	gateway := l.outer[l.right].Addr().AsSlice()
	l.outer[l.right] = loopEndpoint
	link, err := l.right.host.nl.LinkByName(cable)
	expect.NoError(t, err)
	expect.NoError(t, l.right.host.nl.RouteAdd(&netlink.Route{ // messages from another address would move the endpoint
		Dst: ipNet(hostPrefix(l.outer[l.left])), LinkIndex: link.Attrs().Index, Src: loopEndpoint.Addr().AsSlice(),
	}))
	peer := l.peerOf(l.left)
	peer.AllowedIPs = []net.IPNet{*ipNet(netip.MustParsePrefix("0.0.0.0/0"))}
	l.right.start(t, l.left.asPeer(netip.AddrPort{}, nil))
	l.left.start(t, peer)
	expect.NoError(t, l.left.host.nl.RouteAdd(&netlink.Route{Gw: gateway}))
	serveEcho(t, l.right.host)
	exchange(t, l.left, l.right.inner4.Addr(), 100)
	return l
}

// loop routes the endpoint into the tunnel, sends ten packets, and returns when packets are counted as dropped for it.
func (l *lab) loop(t *testing.T) (end func()) {
	t.Helper()
	link, err := l.left.host.nl.LinkByName(l.left.ifname)
	expect.NoError(t, err)
	route := &netlink.Route{Dst: ipNet(loopEndpoint), LinkIndex: link.Attrs().Index}
	expect.NoError(t, l.left.host.nl.RouteAdd(route))
	c, err := dialUDP(l.left.host, netip.AddrPortFrom(l.right.inner4.Addr(), sinkPort))
	expect.NoError(t, err)
	defer c.Close()
	expect.EventuallyNoError(t, "packets to be dropped for the loop", func() error {
		_, _ = c.Write(make([]byte, 100)) // an ICMP error may be queued
		if out := l.left.showLanes(t); !regexp.MustCompile(`\d tx_loop`).MatchString(out) {
			return errors.New(out)
		}
		return nil
	})
	return func() { expect.NoError(t, l.left.host.nl.RouteDel(route)) }
}

// TestRouteIntoTunnelCausesNoStorm routes the endpoint into the tunnel. Each packet would come back as a larger one, and with outer fragments
// for ever.
func TestRouteIntoTunnelCausesNoStorm(t *testing.T) {
	forPairings(t, []pairing{{withOuterFragments, ropewalk}}, func(t *testing.T, p pairing) {
		l := newLoopLab(t, p)
		end := l.loop(t)
		before := l.left.sent(t)
		for range 10 {
			l.left.showLanes(t) // a storm goes on meanwhile: tens of thousands of packets a second
		}
		if n := l.left.sent(t) - before; n > 100 {
			t.Errorf("%d packets enter the tunnel, and nobody sends", n)
		}
		end()
		exchange(t, l.left, l.right.inner4.Addr(), 1000)
	})
}

// sent returns the number of packets that entered the tunnel.
func (x *tunnel) sent(t *testing.T) uint64 {
	t.Helper()
	l, err := x.host.nl.LinkByName(x.ifname)
	expect.NoError(t, err)
	return l.Attrs().Statistics.TxPackets
}

// TestRouteIntoTunnelLeavesNoPathMTU routes the endpoint into the tunnel and back. The host's own ICMP errors of that time must not count:
// towards a stock peer nothing would correct them for ten minutes.
func TestRouteIntoTunnelLeavesNoPathMTU(t *testing.T) {
	forPairings(t, []pairing{{ropewalk, wireguardGo}}, func(t *testing.T, p pairing) {
		l := newLoopLab(t, p)
		l.loop(t)()
		exchange(t, l.left, l.right.inner4.Addr(), 100)
		to := netip.AddrPortFrom(l.right.inner4.Addr(), echoPort)
		expect.NoError(t, repeatExchange(l.left, to, retryInterval, patience, func(c *net.UDPConn) []byte {
			expect.NoError(t, setOption(c, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))
			return pattern(mtu-28, 1) // behind the headers of IPv4 and UDP
		}))
		if out := l.left.showLanes(t); !strings.Contains(out, "path mtu: 1500 bytes") {
			t.Errorf("the path MTU is not 1500 bytes:\n%s", out)
		}
	})
}
