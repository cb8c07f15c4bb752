// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// narrowLab is a pair whose second host routes to a third one over a link with the MTU 1400. It returns the endpoint of a socket there.
func narrowLab(t *testing.T) (p *pair, to underlay.Endpoint, receiver *net.UDPConn) {
	t.Helper()
	p = newPair(t, 1)
	far, err := p.lab.Host("far")
	expect.NoError(t, err)
	prefix := netip.MustParsePrefix
	to = underlay.Endpoint{Dst: netip.MustParseAddrPort("[2001:db8:f::2]:51820")}
	_, err = p.lab.Cable(p.hosts[1], far, netlab.CableConfig{
		Queues: 1, MTU: 1400, AddrsA: []netip.Prefix{prefix("2001:db8:f::1/64")}, AddrsB: []netip.Prefix{prefix("2001:db8:f::2/64")},
	})
	expect.NoError(t, err)
	expect.NoError(t, errors.Join(p.hosts[1].Forward(), p.hosts[0].RouteVia(prefix("2001:db8:f::/64"), addrs6[1].Addr()),
		far.RouteVia(prefix("::/0"), netip.MustParseAddr("2001:db8:f::1"))))
	expect.NoError(t, far.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(to.Dst))
		return err
	}))
	t.Cleanup(func() { _ = receiver.Close() })
	return p, to, receiver
}

// TestPathMTUOverIPv6IsLearnedWithoutReview has a router with a smaller MTU behind it. The kernel announces no path MTU that it
// learns from the router, and no review is near.
func TestPathMTUOverIPv6IsLearnedWithoutReview(t *testing.T) {
	p, to, receiver := narrowLab(t)
	port := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}, reviewInterval: time.Hour}, udp.Config{})
	awaitXDP(t, port, &to)
	buf := make([]byte, 2048)
	large := message(4, 1400)
	expect.Eventually(t, "a message above the path MTU arrives", func() bool {
		runs := []underlay.Run{{To: &to, Parts: [][]byte{large}, Segments: 1}}
		port.Lane(0).Send(runs) // an error if the kernel has learned the path MTU just now
		expect.NoError(t, receiver.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		n, _, err := receiver.ReadFromUDPAddrPort(buf)
		return err == nil && n == len(large)
	})
	if got := port.table.present(targetOf(&to)); got.egress.mtu != 1400 {
		t.Errorf("got path %+v, want an MTU of 1400", got)
	}
}

// TestLearnedPathMTUHoldsForFragmentsAlone has a kernel that believes an ICMP error, as it believes forged ones. Messages with Don't
// Fragment stay with AF_XDP.
func TestLearnedPathMTUHoldsForFragmentsAlone(t *testing.T) {
	p, to, _ := narrowLab(t)
	port := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}, reviewInterval: time.Hour}, udp.Config{TooBig: func(*toobig.Message) {}})
	if !port.Features().DontFragment {
		t.Skip("needs CAP_NET_RAW for ICMP errors")
	}
	awaitXDP(t, port, &to)
	expect.EventuallyNoError(t, "the kernel to learn the path MTU", func() error {
		runs := []underlay.Run{{To: &to, Parts: [][]byte{message(4, 1400)}, Segments: 1}}
		port.Lane(0).Send(runs)
		return p.hosts[0].Do(func() error {
			mtu, err := hostnet.PathMTU(to.Dst.Addr(), 0, 0)
			if err == nil && mtu != 1400 {
				err = fmt.Errorf("path MTU is %d", mtu)
			}
			return err
		})
	})
	for _, permitted := range []bool{false, true, false} {
		expect.NoError(t, port.SetFragments(permitted))
		awaitXDP(t, port, &to)
		want := map[bool]int{false: 1500, true: 1400}[permitted]
		if got := port.table.present(targetOf(&to)).egress.mtu; got != want {
			t.Errorf("fragments permitted %v: got an MTU of %d, want %d", permitted, got, want)
		}
	}
}

func TestTooBigDestinationsAreBounded(t *testing.T) {
	w := &watcher{tooBig: map[netip.Addr]struct{}{}}
	at := netip.MustParseAddr("2001:db8::1")
	for range 2 * maxTooBig {
		w.recordTooBig(at)
		at = at.Next()
	}
	if n := len(w.takeTooBig()); n != maxTooBig || !w.recordTooBig(at) {
		t.Errorf("got %d destinations, want %d, and then room again", n, maxTooBig)
	}
}
