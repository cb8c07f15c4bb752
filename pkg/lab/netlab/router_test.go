// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// natPair is an inner host, its router, and an outer host that has no route to the inner one.
type natPair struct{ inner, router, outer *Host }

var (
	innerAddrs  = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd10::2/64")}
	routerInner = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd10::1/64")}
	routerOuter = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("fd20::1/64")}
	outerAddrs  = []netip.Prefix{netip.MustParsePrefix("203.0.113.2/24"), netip.MustParsePrefix("fd20::2/64")}
)

func newNATPair(t *testing.T) natPair {
	t.Helper()
	lab := newLab(t)
	p := natPair{newHost(t, lab, "inner"), newHost(t, lab, "router"), newHost(t, lab, "outer")}
	_, err := lab.Cable(p.inner, p.router, CableConfig{AddrsA: innerAddrs, AddrsB: routerInner})
	if err == nil {
		_, err = lab.Cable(p.router, p.outer, CableConfig{AddrsA: routerOuter, AddrsB: outerAddrs})
	}
	err = errors.Join(err,
		p.inner.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), routerInner[0].Addr()),
		p.inner.RouteVia(netip.MustParsePrefix("::/0"), routerInner[1].Addr()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func requireNft(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNoNftables) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// observedSource sends datagrams until one arrives, and returns the source address that the receiver sees.
func observedSource(t *testing.T, from, to *net.UDPConn) netip.AddrPort {
	t.Helper()
	dst := to.LocalAddr().(*net.UDPAddr).AddrPort()
	for range 40 { // a new cable may lose the first datagrams
		if _, err := from.WriteToUDPAddrPort([]byte("hello"), dst); err != nil {
			t.Fatal(err)
		}
		_ = to.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, src, err := to.ReadFromUDPAddrPort(make([]byte, 16)); err == nil {
			return src
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	t.Fatalf("no datagram from %v arrived at %v", from.LocalAddr(), dst)
	return netip.AddrPort{}
}

func TestMasqueradeHidesTheInnerHost(t *testing.T) {
	for name, test := range map[string]struct{ ports, want NATPorts }{
		"keeping ports":  {NATPorts{}, NATPorts{51820, 51820}},
		"changing ports": {NATPorts{30000, 30100}, NATPorts{30000, 30100}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newNATPair(t)
			requireNft(t, p.router.Masquerade("cable1", test.ports))
			for i, want := range []netip.Addr{routerOuter[0].Addr(), routerOuter[1].Addr()} {
				inner := listenUDP(t, p.inner, netip.AddrPortFrom(innerAddrs[i].Addr(), 51820).String())
				outer := listenUDP(t, p.outer, netip.AddrPortFrom(outerAddrs[i].Addr(), 51820).String())
				seen := observedSource(t, inner, outer)
				if seen.Addr() != want || seen.Port() < test.want.First || seen.Port() > test.want.Last {
					t.Errorf("got source %v, want address %v, ports %d to %d", seen, want, test.want.First, test.want.Last)
				}
				if _, err := outer.WriteToUDPAddrPort([]byte("back"), seen); err != nil {
					t.Fatal(err)
				}
				_ = inner.SetReadDeadline(time.Now().Add(20 * time.Second))
				if n, err := inner.Read(make([]byte, 16)); n != 4 || err != nil {
					t.Errorf("reading the reply: got %d bytes, error %v", n, err)
				}
			}
		})
	}
}

func TestStatefulFirewallAcceptsOnlyReplies(t *testing.T) {
	a, b := newPair(t, 1)
	requireNft(t, a.AcceptRepliesOnly("cable0"))
	for i := range addrsA {
		mine := netip.AddrPortFrom(addrsA[i].Addr(), 51820)
		theirs := netip.AddrPortFrom(addrsB[i].Addr(), 51820)
		inside, outside := listenUDP(t, a, mine.String()), listenUDP(t, b, theirs.String())
		stranger := listenUDP(t, b, netip.AddrPortFrom(addrsB[i].Addr(), 61000).String())
		asking := listenUDP(t, a, netip.AddrPortFrom(addrsA[i].Addr(), 7).String())
		if _, err := stranger.WriteToUDPAddrPort([]byte("unasked"), mine); err != nil {
			t.Fatal(err)
		}
		if _, err := outside.WriteToUDPAddrPort([]byte("unasked"), mine); err != nil {
			t.Fatal(err)
		}
		// The unasked datagrams must have been dropped before inside's question opens their flow. A reply to asking travels
		// behind them, so its arrival shows that.
		if _, err := asking.WriteToUDPAddrPort([]byte("question"), theirs); err != nil {
			t.Fatal(err)
		}
		observedSource(t, outside, asking)
		if _, err := inside.WriteToUDPAddrPort([]byte("question"), theirs); err != nil {
			t.Fatal(err)
		}
		observedSource(t, inside, outside)
		if _, err := stranger.WriteToUDPAddrPort([]byte("unasked"), mine); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		if _, err := outside.WriteToUDPAddrPort([]byte("answer"), mine); err != nil {
			t.Fatal(err)
		}
		_ = inside.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, src, err := inside.ReadFromUDPAddrPort(buf); err != nil || string(buf[:n]) != "answer" {
			t.Errorf("first datagram: got %q from %v, error %v; want \"answer\"", buf[:n], src, err)
		}
	}
}

func TestNftErrorsAreReported(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	requireNft(t, h.AcceptRepliesOnly("cable0"))
	if err := h.nft("no such command"); err == nil || errors.Is(err, ErrNoNftables) {
		t.Errorf("an unknown nft command: got error %v, want one other than ErrNoNftables", err)
	}
	t.Setenv("PATH", "")
	if err := h.AcceptRepliesOnly("cable0"); !errors.Is(err, ErrNoNftables) {
		t.Errorf("without nft: got error %v, want ErrNoNftables", err)
	}
}

func TestRouteViaUnreachableGatewayFails(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	if err := h.RouteVia(netip.MustParsePrefix("10.9.0.0/16"), netip.MustParseAddr("10.200.0.1")); err == nil {
		t.Error("route via an unreachable gateway: got no error")
	}
	if _, err := os.Stat(h.Path()); err != nil { // the namespace still exists
		t.Error(err)
	}
}
