// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeMessage returns a message about a route with these flags.
func routeMessage(kind uint16, flags uint32) syscall.NetlinkMessage {
	data := make([]byte, unix.SizeofRtMsg)
	binary.NativeEndian.PutUint32(data[8:], flags)
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: data}
}

// linkMessage returns a message about a link.
func linkMessage(family byte, flags, change uint32) syscall.NetlinkMessage {
	data := make([]byte, unix.SizeofIfInfomsg)
	data[0] = family
	binary.NativeEndian.PutUint32(data[8:], flags)
	binary.NativeEndian.PutUint32(data[12:], change)
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: data}
}

func TestOnlyPathChangesAreRelevant(t *testing.T) {
	for name, c := range map[string]struct {
		message syscall.NetlinkMessage
		want    bool
	}{
		"route added":            {routeMessage(unix.RTM_NEWROUTE, 0), true},
		"route removed":          {routeMessage(unix.RTM_DELROUTE, 0), true},
		"route learned":          {routeMessage(unix.RTM_NEWROUTE, unix.RTM_F_CLONED), false},
		"route truncated":        {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWROUTE}, Data: []byte{2}}, false},
		"address removed":        {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_DELADDR}}, true},
		"address refreshed":      {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}}, false},
		"link set down":          {linkMessage(0, unix.IFF_BROADCAST, unix.IFF_UP|unix.IFF_RUNNING), true},
		"link set up":            {linkMessage(0, unix.IFF_UP, unix.IFF_UP), false},
		"link changed otherwise": {linkMessage(0, 0, unix.IFF_PROMISC), false},
		"bridge port":            {linkMessage(unix.AF_BRIDGE, 0, unix.IFF_UP), false},
		"link truncated":         {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: make([]byte, 15)}, false},
		"anything else":          {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWNEIGH}}, false},
	} {
		if got := isRouteChange(c.message.Header.Type, c.message.Data); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func FuzzRouteMessages(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWROUTE), routeMessage(0, 0).Data)
	f.Add(uint16(unix.RTM_NEWLINK), linkMessage(0, 0, 1).Data)
	f.Add(uint16(unix.RTM_DELADDR), []byte{})
	f.Fuzz(func(_ *testing.T, kind uint16, data []byte) {
		isRouteChange(kind, data)
		filterDevice(kind, data)
	})
}

// arrival is one result of a simulated socket.
type arrival struct {
	messages []syscall.NetlinkMessage
	err      error
}

// scripted watches a simulated socket that returns the arrivals sent to the channel. calls returns the number of calls
// so far.
func scripted(t *testing.T, changed func()) (arrivals chan<- arrival, calls func() int) {
	ch := make(chan arrival)
	n := 0
	ctx, cancel := context.WithCancel(t.Context())
	watch(ctx, func() { n++; changed() }, isRouteChange, func() ([]syscall.NetlinkMessage, error) {
		select {
		case <-ctx.Done():
			return nil, net.ErrClosed
		case a := <-ch:
			return a.messages, a.err
		}
	})
	t.Cleanup(func() {
		cancel()
		synctest.Wait() // and the bubble fails if a goroutine is left
	})
	return ch, func() int {
		time.Sleep(2 * burstWindow)
		synctest.Wait()
		return n
	}
}

func TestBurstOfChangesIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrivals, calls := scripted(t, func() {})
		route := arrival{messages: []syscall.NetlinkMessage{routeMessage(unix.RTM_NEWROUTE, 0)}}
		for burst := 1; burst <= 3; burst++ {
			for range 1000 {
				arrivals <- route
			}
			if n := calls(); n != burst {
				t.Fatalf("%d calls after %d bursts", n, burst)
			}
		}
		arrivals <- arrival{messages: []syscall.NetlinkMessage{linkMessage(0, unix.IFF_UP, 0)}}
		if n := calls(); n != 3 {
			t.Errorf("got %d calls, want none for irrelevant messages", n)
		}
	})
}

func TestOverrunIsReportedAsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrivals, calls := scripted(t, func() {})
		for want := 1; want <= 3; want++ {
			arrivals <- arrival{err: unix.ENOBUFS}
			if n := calls(); n != want {
				t.Fatalf("%d calls after %d overruns", n, want)
			}
		}
	})
}

// TestChangesDuringCallbackAreReported: a change while changed runs is reported afterwards.
func TestChangesDuringCallbackAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered, leave := make(chan struct{}), make(chan struct{})
		arrivals, calls := scripted(t, func() { entered <- struct{}{}; <-leave })
		route := arrival{messages: []syscall.NetlinkMessage{routeMessage(unix.RTM_DELROUTE, 0)}}
		arrivals <- route
		<-entered
		for range 10 {
			arrivals <- route
		}
		leave <- struct{}{}
		<-entered
		leave <- struct{}{}
		if n := calls(); n != 2 {
			t.Errorf("got %d calls, want 2", n)
		}
	})
}

func TestFilterChangesOfOneDeviceAreReported(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "here", "there")
	here, err := netlink.LinkByName("here")
	if err != nil {
		t.Fatal(err)
	}
	c := make(changes, 1000)
	isHere := func(index int) bool { return index == here.Attrs().Index }
	if err := WatchFilters(t.Context(), isHere, func() { c <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	filter := clsactFilter(here.Attrs().Index)
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"qdisc added", func() error { return netlink.QdiscAdd(clsact(here.Attrs().Index)) }},
		{"filter added", func() error { return netlink.FilterAdd(filter) }},
		{"filter removed", func() error { return netlink.FilterDel(filter) }},
		{"qdisc removed", func() error { return netlink.QdiscDel(clsact(here.Attrs().Index)) }},
	} {
		if err := step.do(); err != nil {
			t.Skipf("%s: needs clsact and u32 filters: %v", step.what, err)
		}
		c.await(t, step.what)
	}
	there, err := netlink.LinkByName("there")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.QdiscAdd(clsact(there.Attrs().Index)); err != nil {
		t.Fatal(err)
	}
	if err := netlink.QdiscAdd(clsact(here.Attrs().Index)); err != nil {
		t.Fatal(err)
	}
	c.await(t, "the second change, and not the other device's")
	if len(c) != 0 {
		t.Error("a change of the other device was reported")
	}
}

func clsact(device int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func clsactFilter(device int) netlink.Filter {
	return &netlink.U32{FilterAttrs: netlink.FilterAttrs{LinkIndex: device, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 1, Protocol: unix.ETH_P_IP}}
}

// changes receives a token for each call of a watch.
type changes chan struct{}

// watched watches the test's namespace, and waits until earlier changes have been reported.
func watched(t *testing.T) changes {
	t.Helper()
	c := make(changes, 1000)
	if err := WatchRoutes(t.Context(), func() { c <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	c.drain()
	return c
}

// await fails the test unless a change is reported, and then waits until the kernel sends no more messages.
func (c changes) await(t *testing.T, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not reported", what)
	}
	c.drain()
}

func (c changes) drain() {
	for {
		select {
		case <-c:
		case <-time.After(5 * burstWindow):
			return
		}
	}
}

// setIPv6 sets an IPv6 sysctl of a link in the thread's namespace, if it exists.
func setIPv6(t *testing.T, link, parameter, value string) {
	t.Helper()
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/"+parameter, []byte(value), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Skipf("needs a writable /proc/sys: %v", err)
	}
}

func mustParseAddr(t *testing.T, s string) *netlink.Addr {
	t.Helper()
	addr, err := netlink.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD
	return addr
}

func TestKernelChangesAreReported(t *testing.T) {
	enterNamespace(t)
	setIPv6(t, "default", "addr_gen_mode", "1") // no link-local addresses, which change asynchronously
	addVeth(t, "uplink", "far")
	link, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := mustParseAddr(t, "192.0.2.1/24"), mustParseAddr(t, "2001:db8::1/64")
	extra4, extra6 := mustParseAddr(t, "192.0.2.9/24"), mustParseAddr(t, "2001:db8::9/64")
	for _, a := range []*netlink.Addr{v4, v6, extra4, extra6} {
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
	route4 := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("192.0.2.254")}
	route6 := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("2001:db8::fe")}
	rule := func(family int) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Table, r.Priority = family, 100, 100
		return r
	}
	c := watched(t)
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"IPv4 rule added", func() error { return netlink.RuleAdd(rule(netlink.FAMILY_V4)) }},
		{"IPv4 rule removed", func() error { return netlink.RuleDel(rule(netlink.FAMILY_V4)) }},
		{"IPv6 rule added", func() error { return netlink.RuleAdd(rule(netlink.FAMILY_V6)) }},
		{"IPv6 rule removed", func() error { return netlink.RuleDel(rule(netlink.FAMILY_V6)) }},
		{"IPv4 route added", func() error { return netlink.RouteAdd(route4) }},
		{"IPv6 route added", func() error { return netlink.RouteAdd(route6) }},
		{"IPv4 route removed", func() error { return netlink.RouteDel(route4) }},
		{"IPv6 route removed", func() error { return netlink.RouteDel(route6) }},
		{"IPv4 address removed", func() error { return netlink.AddrDel(link, extra4) }},
		{"IPv6 address removed", func() error { return netlink.AddrDel(link, extra6) }},
		{"IPv6 switched off", func() error { setIPv6(t, "uplink", "disable_ipv6", "1"); return nil }},
		{"link with IPv4 only set down", func() error { return netlink.LinkSetDown(link) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: got error %v, want none", step.what, err)
		}
		c.await(t, step.what)
	}
}

func TestTrafficIsNotReported(t *testing.T) {
	enterNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	c := watched(t)
	talk(t, "udp4", "127.0.0.1:0")
	talk(t, "udp6", "[::1]:0")
	select {
	case <-c:
		t.Error("traffic was reported as a change")
	case <-time.After(3 * burstWindow):
	}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("192.0.2.0/24"))}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	c.await(t, "route added")
}

// talk sends and receives datagrams over the loopback device.
func talk(t *testing.T, network, at string) {
	t.Helper()
	addr, err := net.ResolveUDPAddr(network, at)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP(network, addr)
	if err != nil {
		t.Skipf("needs %s: %v", network, err)
	}
	defer conn.Close()
	buf := make([]byte, 10)
	for range 100 {
		if _, err := conn.WriteTo(buf, conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.ReadFrom(buf); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchEndsWithContext(t *testing.T) {
	enterNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	late := make(chan struct{}, 1000)
	if err := WatchRoutes(ctx, func() { late <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	c := watched(t)
	cancel()
	for len(late) > 0 {
		<-late
	}
	if err := netlink.AddrAdd(lo, mustParseAddr(t, "192.0.2.1/32")); err != nil {
		t.Fatal(err)
	}
	c.await(t, "address added")
	if len(late) != 0 {
		t.Error("called after the context ended")
	}
}
