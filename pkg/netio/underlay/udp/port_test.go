// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/test/expect"
)

func open(t testing.TB, c Config) *Port {
	t.Helper()
	p, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// loopback returns p's endpoint on this host.
func loopback(p *Port, ipv6 bool) underlay.Endpoint {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if ipv6 {
		addr = netip.IPv6Loopback()
	}
	return underlay.Endpoint{Dst: netip.AddrPortFrom(addr, p.LocalPort())}
}

func TestSocketsPassContract(t *testing.T) {
	for name, c := range map[string]Config{
		"everything":   {},
		"without GSO":  {NoGSO: true},
		"without GRO":  {NoGRO: true},
		"IPv4 only":    {NoIPv6: true},
		"no offloads":  {NoGSO: true, NoGRO: true},
		"busy polling": {BusyPoll: true},
	} {
		t.Run(name, func(t *testing.T) {
			underlaytest.RunContract(t, func(t *testing.T) underlaytest.Subject {
				enterNamespace(t)
				a, b := open(t, c), open(t, c)
				return underlaytest.Subject{A: a, B: b, ToB: func(ipv6 bool) underlay.Endpoint { return loopback(b, ipv6) }}
			})
		})
	}
}

func TestSocketsPassSelectorContract(t *testing.T) {
	requireReplaceable(t)
	for name, c := range map[string]Config{"everything": {}, "bare": {NoGSO: true, NoGRO: true}, "IPv4 only": {NoIPv6: true}} {
		t.Run(name, func(t *testing.T) {
			underlaytest.RunSelectorContract(t, func(t *testing.T, lanes int) underlaytest.Subject {
				enterNamespace(t)
				wide := c
				wide.Lanes = lanes
				a, b := open(t, c), open(t, wide)
				return underlaytest.Subject{A: a, B: b, ToB: func(ipv6 bool) underlay.Endpoint { return loopback(b, ipv6) }}
			})
		})
	}
}

func TestFeaturesFollowKernelAndConfig(t *testing.T) {
	p := open(t, Config{NoGSO: true, NoGRO: true, NoIPv6: true})
	if f := p.Features(); f.GSO || f.GRO || f.IPv6 || !f.IPv4 {
		t.Errorf("disabled, but Features is %+v", f)
	}
	release, _ := kernel.Uname()
	if f := open(t, Config{}).Features(); groUsable(release) && (!f.GSO || !f.GRO) {
		t.Errorf("kernel %s has both offloads, found %+v", release, f)
	}
}

func TestTakenPortIsRefused(t *testing.T) {
	p := open(t, Config{Lanes: 3})
	for _, lanes := range []int{1, 3} {
		before := openFiles(t)
		_, err := Open(Config{Port: p.LocalPort(), Lanes: lanes})
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a second Open with %d lanes: got %v, want EADDRINUSE", lanes, err)
		}
		if after := openFiles(t); !slices.Equal(before, after) {
			t.Errorf("a failed Open leaks descriptors: %v, then %v", before, after)
		}
	}
	if c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(p.LocalPort())}); err == nil {
		c.Close()
		t.Error("an ordinary IPv4 socket could bind the port too")
	}
}

func TestPortHeldByAnotherIsRefused(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = Open(Config{Port: uint16(c.LocalAddr().(*net.UDPAddr).Port)})
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("got %v, want EADDRINUSE", err)
	}
}

func TestTooManyLanesAreRefused(t *testing.T) {
	if _, err := Open(Config{Lanes: MaxLanes + 1}); err == nil {
		t.Error("Open succeeded")
	}
}

func TestCloseReleasesDescriptorsAndPort(t *testing.T) {
	before := openFiles(t)
	p := open(t, Config{Lanes: 4})
	port := p.LocalPort()
	openSource(t, p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); !slices.Equal(before, after) {
		t.Errorf("descriptors %v, then %v", before, after)
	}
	open(t, Config{Port: port, Lanes: 2})
}

// openFiles lists the sockets of this process.
func openFiles(t *testing.T) (sockets []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if len(target) > 6 && target[:6] == "socket" {
			sockets = append(sockets, fmt.Sprint(e.Name(), " ", target))
		}
	}
	return sockets
}

// TestSourcePortsSpreadOverLanes proves that setting SO_REUSEPORT after the first bind gives a working group. With 64
// senders, the probability that one of 4 lanes gets nothing is below 1e-7 per run.
func TestSourcePortsSpreadOverLanes(t *testing.T) {
	const lanes, senders = 4, 64
	for _, ipv6 := range []bool{false, true} {
		enterNamespace(t)
		p := open(t, Config{Lanes: lanes})
		counts := make(chan int, senders)
		for i := range lanes {
			go func() {
				rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
				for {
					if _, err := p.Lane(i).Recv(rx); err != nil {
						return
					}
					counts <- i
				}
			}()
		}
		to := loopback(p, ipv6)
		for range senders {
			if err := open(t, Config{}).SendTo(&to, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		var got [lanes]int
		for range senders {
			select {
			case i := <-counts:
				got[i]++
			case <-time.After(20 * time.Second):
				t.Fatalf("datagrams lost: %v", got)
			}
		}
		if slices.Min(got[:]) == 0 {
			t.Errorf("ipv6 %v: a lane got nothing: %v", ipv6, got)
		}
	}
}

func TestAnswersLeaveFromReceivingAddress(t *testing.T) {
	requireNamespace(t)
	a, b := open(t, Config{}), open(t, Config{})
	to := loopback(b, false)
	to.Dst = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.77"), to.Dst.Port())
	from := exchange(t, a, b, &to)
	if want := netip.MustParseAddr("127.0.0.77"); from.Src != want {
		t.Fatalf("reached on %v, want %v", from.Src, want)
	}
	if back := exchange(t, b, a, &from); back.Dst != to.Dst {
		t.Errorf("the answer came from %v, want %v", back.Dst, to.Dst)
	}
}

// exchange sends a run of three datagrams, and one by SendTo, and returns their senders.
func exchange(t *testing.T, from, at *Port, to *underlay.Endpoint) underlay.Endpoint {
	t.Helper()
	runs := []underlay.Run{{To: to, Parts: [][]byte{make([]byte, 250)}, SegSize: 100, Segments: 3}}
	if from.Lane(0).Send(runs) != 0 {
		t.Fatal(runs[0].Err)
	}
	if err := from.SendTo(to, []byte("x")); err != nil {
		t.Fatal(err)
	}
	rx := make([]underlay.Datagrams, 4)
	for i := range rx {
		rx[i].Buf = make([]byte, 65535)
	}
	for got := 0; got < 251; {
		n, err := at.Lane(0).Recv(rx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			got += rx[i].N
			if rx[i].From != rx[0].From {
				t.Errorf("datagrams came from %+v and %+v", rx[0].From, rx[i].From)
			}
		}
	}
	return rx[0].From
}

func TestLostSourceAddressFallsBackToRouting(t *testing.T) {
	requireNamespace(t)
	a, b := open(t, Config{}), open(t, Config{})
	for _, src := range []string{"192.0.2.9", "2001:db8::9"} {
		to := loopback(b, src == "2001:db8::9")
		to.Src = netip.MustParseAddr(src)
		if from := exchange(t, a, b, &to); from.Dst.Addr() != to.Dst.Addr() {
			t.Errorf("without source %v it left from %v", src, from.Dst)
		}
	}
	if !a.Features().GSO {
		t.Error("a lost source address revoked GSO")
	}
}

func TestLinkLocalPeersNeedTheirScope(t *testing.T) {
	requireNamespace(t)
	link, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := netlink.ParseAddr("fe80::1/64")
	addr.Flags = unix.IFA_F_NODAD
	if err := errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link)); err != nil {
		t.Fatal(err)
	}
	awaitLocalRoute(t, link, addr.IPNet)
	a, b := open(t, Config{}), open(t, Config{})
	ll := netip.MustParseAddr("fe80::1")
	to := underlay.Endpoint{Dst: netip.AddrPortFrom(ll, b.LocalPort()), Scope: uint32(link.Attrs().Index), Src: ll}
	from := exchange(t, a, b, &to)
	if want := (underlay.Endpoint{Dst: netip.AddrPortFrom(ll, a.LocalPort()), Scope: to.Scope, Src: ll}); from != want {
		t.Errorf("from %+v, want %+v", from, want)
	}
}

// awaitLocalRoute waits until the address is reachable: the kernel adds its route from a work queue.
func awaitLocalRoute(t *testing.T, link netlink.Link, addr *net.IPNet) {
	t.Helper()
	want := &netlink.Route{
		Table: unix.RT_TABLE_LOCAL, LinkIndex: link.Attrs().Index,
		Dst: &net.IPNet{IP: addr.IP, Mask: net.CIDRMask(128, 128)},
	}
	const filter = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_DST | netlink.RT_FILTER_OIF
	expect.Eventually(t, fmt.Sprintf("%v has a local route", addr.IP), func() bool {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, want, filter)
		return err == nil && len(routes) > 0
	})
}

// TestRunsBeyondTheMTUAreFragmented: the kernel's WireGuard permits fragmentation of outer packets, and GSO does not.
func TestRunsBeyondTheMTUAreFragmented(t *testing.T) {
	requireNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(lo, 1400); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, Config{}), open(t, Config{})
	for _, ipv6 := range []bool{false, true} {
		to := loopback(b, ipv6)
		runs := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, 2*1452+7)}, SegSize: 1452, Segments: 3}}
		if a.Lane(0).Send(runs) != 0 {
			t.Fatal(runs[0].Err)
		}
		rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
		for _, want := range []int{1452, 1452, 7} {
			if _, err := b.Lane(0).Recv(rx); err != nil || rx[0].N != want {
				t.Fatalf("got %d bytes, %v; want %d", rx[0].N, err, want)
			}
		}
	}
	if !a.Features().GSO {
		t.Error("one long datagram revoked GSO for good")
	}
}

func TestUnreachableRunDoesNotStopOthers(t *testing.T) {
	requireNamespace(t)
	a, b := open(t, Config{}), open(t, Config{})
	good, bad := loopback(b, false), underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.1:1"), Src: netip.MustParseAddr("192.0.2.9")}
	part := [][]byte{make([]byte, 20)}
	runs := []underlay.Run{
		{To: &bad, Parts: part, SegSize: 10, Segments: 2},
		{To: &good, Parts: part, SegSize: 10, Segments: 2},
		{To: &bad, Parts: part, Segments: 1},
		{To: &good, Parts: part, Segments: 1},
	}
	if failed := a.Lane(0).Send(runs); failed != 2 {
		t.Errorf("got %d failed, want 2", failed)
	}
	for i := range runs {
		if (runs[i].Err != nil) != (i%2 == 0) || i%2 == 0 && !errors.Is(runs[i].Err, unix.ENETUNREACH) {
			t.Errorf("run %d: %v", i, runs[i].Err)
		}
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	for got := 0; got < 40; got += rx[0].N {
		if _, err := b.Lane(0).Recv(rx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullSendBufferDoesNotDelayControlMessages sends through a device that takes minutes for what the socket buffers. Callers of SendTo
// and SendRun hold a peer's lock.
func TestFullSendBufferDoesNotDelayControlMessages(t *testing.T) {
	slowDevice(t)
	a := open(t, Config{SendBuffer: 1})
	to := behindSlowDevice(false)
	datagram := make([]byte, 1000)
	var err error
	for sent := 0; err == nil; sent++ {
		if sent == 10_000 {
			t.Fatal("the send buffer never fills")
		}
		err = a.SendTo(&to, datagram)
	}
	if !errors.Is(err, underlay.ErrSendBufferFull) {
		t.Errorf("SendTo: %v, want %v", err, underlay.ErrSendBufferFull)
	}
	r := underlay.Run{To: &to, Parts: [][]byte{datagram}, SegSize: 500, Segments: 2}
	if err := a.SendRun(&r); !errors.Is(err, underlay.ErrSendBufferFull) {
		t.Errorf("SendRun: %v, want %v", err, underlay.ErrSendBufferFull)
	}
	if !a.Features().GSO {
		t.Error("a full send buffer revoked GSO")
	}
}

func TestIPv6EndpointFailsOnIPv4Port(t *testing.T) {
	a := open(t, Config{NoIPv6: true})
	to := underlay.Endpoint{Dst: netip.MustParseAddrPort("[::1]:9")}
	if err := a.SendTo(&to, []byte("x")); !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Errorf("SendTo: got error %v, want %v", err, unix.EAFNOSUPPORT)
	}
	for _, segments := range []int{1, 2} {
		runs := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, 2)}, SegSize: 1, Segments: segments}}
		if segments == 1 {
			runs[0].SegSize = 2
		}
		if a.Lane(0).Send(runs) != 1 || !errors.Is(runs[0].Err, unix.EAFNOSUPPORT) {
			t.Errorf("Send of %d: got %v, want %v", segments, runs[0].Err, unix.EAFNOSUPPORT)
		}
	}
}

func TestMarkIsSetOnEveryLaneAndSource(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 3, Mark: 7})
	sockets := 3 + 1 + 1 // the control group, and the socket that asks routing
	check := func(want uint32) {
		t.Helper()
		seen := 0
		for _, fd := range append(slices.Collect(p.sockets), p.routed.fd) {
			if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); uint32(got) != want || err != nil {
				t.Errorf("socket %d has mark %d, %v; want %d", seen, got, err, want)
			}
			seen++
		}
		if seen != sockets {
			t.Errorf("got %d sockets, want %d", seen, sockets)
		}
		if _, err := p.OpenSource(uint16(61000 + sockets)); err != nil { // the next call has this mark
			t.Fatal(err)
		}
		sockets++
	}
	check(7)
	check(7)
	for _, mark := range []uint32{0xfffffffe, 0} {
		if err := p.SetMark(mark); err != nil {
			t.Fatal(err)
		}
		check(mark)
		check(mark)
	}
}

// TestCloseRacesWithAllCalls is for the race detector, and for uses of a descriptor after its close.
func TestCloseRacesWithAllCalls(t *testing.T) {
	enterNamespace(t)
	for range 20 {
		a, b := open(t, Config{Lanes: 2}), open(t, Config{Lanes: 2})
		to := loopback(b, false)
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
				for _, err := b.Lane(i).Recv(rx); !errors.Is(err, net.ErrClosed); _, err = b.Lane(i).Recv(rx) {
				}
			})
			wg.Go(func() {
				runs := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, 3000)}, SegSize: 1000, Segments: 3}}
				for a.Lane(i).Send(runs); !errors.Is(runs[0].Err, net.ErrClosed); a.Lane(i).Send(runs) {
				}
			})
			wg.Go(func() {
				for err := a.SendTo(&to, []byte("x")); !errors.Is(err, net.ErrClosed); err = a.SendTo(&to, []byte("x")) {
				}
			})
		}
		wg.Go(func() {
			// Reused descriptors must not be closed twice.
			for port := uint16(61000); ; port = 61000 + (port-60999)%999 {
				if _, err := a.OpenSource(port); errors.Is(err, net.ErrClosed) {
					return
				}
			}
		})
		wg.Go(func() { _ = b.Close() })
		wg.Go(func() { _ = a.Close() })
		wg.Wait()
	}
}
