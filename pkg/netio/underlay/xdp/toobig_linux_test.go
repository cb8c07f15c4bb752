// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPathMTUOverIPv6IsLearnedWithoutReview has a router with a smaller MTU behind it. The kernel announces no path MTU that it
// learns from the router, and no review is near.
func TestPathMTUOverIPv6IsLearnedWithoutReview(t *testing.T) {
	p := newPair(t, 1)
	far, err := p.lab.Host("far")
	expect.NoError(t, err)
	prefix := netip.MustParsePrefix
	to := underlay.Endpoint{Dst: netip.MustParseAddrPort("[2001:db8:f::2]:51820")}
	_, err = p.lab.Cable(p.hosts[1], far, netlab.CableConfig{
		Queues: 1, MTU: 1400, AddrsA: []netip.Prefix{prefix("2001:db8:f::1/64")}, AddrsB: []netip.Prefix{prefix("2001:db8:f::2/64")},
	})
	expect.NoError(t, err)
	expect.NoError(t, errors.Join(p.hosts[1].Forward(), p.hosts[0].RouteVia(prefix("2001:db8:f::/64"), addrs6[1].Addr()),
		far.RouteVia(prefix("::/0"), netip.MustParseAddr("2001:db8:f::1"))))
	var receiver *net.UDPConn
	expect.NoError(t, far.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(to.Dst))
		return err
	}))
	defer receiver.Close()

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
	if got := port.table.find(targetOf(&to)); got.egress.mtu != 1400 {
		t.Errorf("got path %+v, want an MTU of 1400", got)
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
