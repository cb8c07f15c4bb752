// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// testNet is a port at one end, and a kernel UDP socket at the other that it reaches through AF_XDP.
type testNet struct {
	*pair
	port *Port
	peer *net.UDPConn
	to   underlay.Endpoint
}

func newTestNet(t *testing.T) *testNet {
	p := newPair(t, 1)
	s := &testNet{pair: p, port: p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), peer: p.openKernelSocket(1)}
	s.to = p.kernelEndpoint(1, s.peer, false)
	awaitXDP(t, s.port, &s.to)
	s.drain()
	return s
}

// do runs f in the network namespace of one end.
func (s *testNet) do(end int, f func() error) {
	s.Helper()
	expect.NoError(s.TB, s.hosts[end].Do(f))
}

// drain discards the datagrams that the peer has received.
func (s *testNet) drain() {
	s.Helper()
	mark := message(3, 64)
	expect.NoError(s.TB, s.port.SendTo(&s.to, mark))
	var got [100]byte
	for {
		n, _, err := s.peer.ReadFromUDPAddrPort(got[:])
		expect.NoError(s.TB, err)
		if bytes.Equal(got[:n], mark) {
			return
		}
	}
}

// expect sends one datagram, and fails unless it arrives through the given path.
func (s *testNet) expect(size int, viaXDP bool) {
	s.Helper()
	before := s.port.Status().Lanes[0]
	sent := message(4, size)
	sendOne(s.TB, s.port.Lane(0), &s.to, sent)
	got := make([]byte, 65535)
	n, _, err := s.peer.ReadFromUDPAddrPort(got)
	expect.NoError(s.TB, err)
	if !bytes.Equal(got[:n], sent) {
		s.Fatalf("%d bytes arrived, want %d", n, size)
	}
	after := s.port.Status().Lanes[0]
	if by := after.Sent > before.Sent; by != viaXDP || by == (after.Slow > before.Slow) {
		s.Fatalf("sent through AF_XDP: got %v, want %v; %+v", by, viaXDP, s.port.Status())
	}
}

func (s *testNet) link(end int, change func(netlink.Link) error) {
	s.Helper()
	s.do(end, func() error {
		l, err := netlink.LinkByName(s.devs[end])
		if err != nil {
			return err
		}
		return change(l)
	})
}

// awaitPath waits until the lanes have a path to the peer that satisfies is.
func (s *testNet) awaitPath(what string, is func(*path) bool) {
	s.Helper()
	expect.Eventually(s.TB, what, func() bool { return is(s.port.table.present(targetOf(&s.to))) })
}

func TestFramesFollowTheNeighbour(t *testing.T) {
	s := newTestNet(t)
	s.expect(100, true)
	addr := mac{2, 1, 2, 3, 4, 5}
	s.link(1, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, addr[:]) })
	known := s.neighbour(0, s.to.Dst.Addr())
	known.HardwareAddr = addr[:]
	s.setNeighbour(0, known, netlink.NUD_REACHABLE)
	s.awaitPath("the new address", func(p *path) bool { return p.egress.to == addr })
	s.expect(101, true)
}

func TestFramesFollowDeviceAddress(t *testing.T) {
	s := newTestNet(t)
	addr := mac{2, 5, 4, 3, 2, 1}
	s.link(0, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, addr[:]) })
	s.awaitPath("the new address", func(p *path) bool { return p.egress.from == addr })
	awaitXDP(t, s.port, &s.to) // the kernel deleted its neighbour entries
	s.drain()
	s.expect(100, true)
}

func TestUnknownNeighbourIsLeftToKernel(t *testing.T) {
	s := newTestNet(t)
	known := s.neighbour(0, s.to.Dst.Addr())
	s.do(0, func() error { return netlink.NeighDel(&known) })
	s.awaitPath("to be without the neighbour", func(p *path) bool { return p.reason == NoNeighbour })
	s.expect(100, false)
	awaitXDP(t, s.port, &s.to)
	s.drain()
	s.expect(101, true)
}

// TestStaleNeighbourInUseIsConfirmed: the kernel does not see that the neighbour is in use, and would leave it stale.
func TestStaleNeighbourInUseIsConfirmed(t *testing.T) {
	s := newTestNet(t)
	s.expect(100, true)
	s.setNeighbour(0, s.neighbour(0, s.to.Dst.Addr()), netlink.NUD_STALE)
	expect.Eventually(t, "the kernel to look for it", func() bool {
		return s.neighbour(0, s.to.Dst.Addr()).State&(netlink.NUD_STALE|netlink.NUD_NONE) == 0
	})
	s.expect(101, true)
}

func TestUnusedStaleNeighbourIsNotConfirmed(t *testing.T) {
	s := newTestNet(t)
	key := targetOf(&s.to)
	for i := byte(100); i == 100 || s.port.table.find(key).used.Load(); i++ { // the supervisor may be confirming it
		s.port.table.find(key).used.Store(false)
		other := underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, i}), 1)}
		awaitReason(t, s.port, &other, NoNeighbour)
	}
	h := s.port.table.present(key).hop
	s.setNeighbour(0, s.neighbour(0, s.to.Dst.Addr()), netlink.NUD_STALE)
	// This request comes after the message about the neighbour.
	other := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.77:1")}
	awaitReason(t, s.port, &other, NoNeighbour)
	if state := s.neighbour(0, h.addr).State; state != netlink.NUD_STALE {
		t.Errorf("got state %d, want %d", state, netlink.NUD_STALE)
	}
}

func TestRunsFollowTheRoute(t *testing.T) {
	s := newTestNet(t)
	other := netlink.NewVeth(netlink.LinkAttrs{Name: "elsewhere", TxQLen: -1})
	other.PeerName = "there"
	dst := &net.IPNet{IP: s.to.Dst.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
	var route netlink.Route
	s.do(0, func() error {
		if err := netlink.LinkAdd(other); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(other); err != nil {
			return err
		}
		route = netlink.Route{LinkIndex: other.Index, Dst: dst, Scope: netlink.SCOPE_LINK}
		return netlink.RouteAdd(&route)
	})
	awaitReason(t, s.port, &s.to, OtherDevice)
	s.do(0, func() error { return netlink.RouteDel(&route) })
	awaitReason(t, s.port, &s.to, ViaXDP)
	s.expect(100, true)
	s.do(0, func() error {
		return netlink.RouteAdd(&netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: dst})
	})
	awaitReason(t, s.port, &s.to, NoRoute)
}

// TestRunsFollowTheirMark has a rule that routes marked packets differently.
func TestRunsFollowTheirMark(t *testing.T) {
	const mark, table = 7, 100
	s := newTestNet(t)
	s.do(0, func() error {
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Table, rule.Priority = unix.AF_INET, mark, table, 10
		return errors.Join(netlink.RuleAdd(rule), netlink.RouteAdd(&netlink.Route{
			Type: unix.RTN_UNREACHABLE, Table: table, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		}))
	})
	s.expect(100, true)
	expect.NoError(t, s.port.SetMark(mark))
	awaitReason(t, s.port, &s.to, NoRoute)
	expect.NoError(t, s.port.SetMark(0))
	awaitReason(t, s.port, &s.to, ViaXDP)
	s.expect(101, true)
}

func TestUnsupportedRulesLeaveEverythingToKernel(t *testing.T) {
	s := newTestNet(t)
	rule := netlink.NewRule()
	rule.Family, rule.Dport, rule.Table, rule.Priority = unix.AF_INET, netlink.NewRulePortRange(1, 2), 100, 10
	s.do(0, func() error { return netlink.RuleAdd(rule) })
	awaitReason(t, s.port, &s.to, UnsupportedRules)
	s.expect(100, false)
	s.do(0, func() error { return netlink.RuleDel(rule) })
	awaitReason(t, s.port, &s.to, ViaXDP)
}

// TestNextHopsChosenByPortsAreLeftToKernel: a lane's frames would all take the same one.
func TestNextHopsChosenByPortsAreLeftToKernel(t *testing.T) {
	s := newTestNet(t)
	policy := func(n string) {
		s.do(0, func() error { return os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte(n), 0o644) })
	}
	policy("1")
	var hops []*netlink.NexthopInfo
	for _, gateway := range []string{"192.0.2.201", "192.0.2.202"} {
		hops = append(hops, &netlink.NexthopInfo{Gw: net.ParseIP(gateway)})
	}
	s.link(0, func(l netlink.Link) error {
		for _, h := range hops {
			h.LinkIndex, h.Flags = l.Attrs().Index, int(netlink.FLAG_ONLINK)
		}
		return netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: s.to.Dst.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}, MultiPath: hops})
	})
	awaitReason(t, s.port, &s.to, UnsupportedRoute)
	policy("0")
	s.link(0, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }) // a change that is announced
	s.awaitPath("by a next hop that addresses choose", func(p *path) bool { return p.reason == NoNeighbour })
}

func TestLocalBroadcastAndMulticastTargetsUseUDP(t *testing.T) {
	s := newTestNet(t)
	for _, dst := range []string{"192.0.2.1", "127.0.0.1", "192.0.2.255", "224.0.0.1", "[2001:db8::1]", "[::1]"} {
		awaitReason(t, s.port, &underlay.Endpoint{Dst: netip.MustParseAddrPort(dst + ":1")}, NoRoute)
	}
}

func TestOnlyLocalSourceAddressesAreUsed(t *testing.T) {
	s := newTestNet(t)
	second := netip.MustParsePrefix("192.0.2.9/24")
	own := s.to
	own.Src = second.Addr()
	awaitReason(t, s.port, &own, NoSource)
	expect.NoError(t, s.hosts[0].SetUp(s.devs[0], 0, second))
	awaitReason(t, s.port, &own, ViaXDP)
	if w := s.port.table.present(targetOf(&own)).egress; w.src != second.Addr() {
		t.Errorf("leaves from %v", w.src)
	}
	s.do(0, func() error {
		l, err := netlink.LinkByName(s.devs[0])
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(second.String())
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, addr)
	})
	awaitReason(t, s.port, &own, NoSource)
}

// TestOversizeTargetUsesUDPUntilPathChanges sends the largest datagram that fits, one that is a byte longer and gets
// fragmented by the kernel, and a short one. The short one must not overtake the long one.
func TestOversizeTargetUsesUDPUntilPathChanges(t *testing.T) {
	s := newTestNet(t)
	const most = 1500 - 28
	s.expect(most, true)
	s.expect(most+1, false)
	s.expect(100, false)
	for end := range 2 {
		s.link(end, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1600) })
	}
	s.awaitPath("the new MTU", func(p *path) bool { return p.egress.mtu == 1600 })
	s.expect(most+1, true)
	s.link(0, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) })
	s.awaitPath("the new MTU", func(p *path) bool { return p.egress.mtu == 1400 })
	s.expect(1400-28, true)
	s.expect(1400-28+1, false)
}

func TestRouteMTUAndHopLimitAreUsed(t *testing.T) {
	s := newTestNet(t)
	s.do(0, func() error {
		l, err := netlink.LinkByName(s.devs[0])
		if err != nil {
			return err
		}
		dst := &net.IPNet{IP: s.to.Dst.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK, MTU: 1300, Hoplimit: 17,
		})
	})
	s.awaitPath("the route", func(p *path) bool { return p.egress.mtu == 1300 && p.egress.hops == 17 })
	s.expect(1300-28, true)
}

func TestUDPSocketTakesOverWhileLinkIsDown(t *testing.T) {
	s := newTestNet(t)
	s.expect(100, true)
	for round := range 3 {
		s.link(0, netlink.LinkSetDown)
		expect.Eventually(t, "the lane to know", func() bool { return errors.Is(s.port.Status().Lanes[0].Err, xsk.ErrDown) })
		runs := []underlay.Run{{To: &s.to, Parts: [][]byte{message(4, 100)}, Segments: 1}}
		if s.port.Lane(0).Send(runs) != 1 || !errors.Is(runs[0].Err, unix.ENETUNREACH) {
			t.Errorf("sent while down: got %v, want %v", runs[0].Err, unix.ENETUNREACH)
		}
		s.link(0, netlink.LinkSetUp)
		expect.Eventually(t, "the lane to be back", func() bool { return s.port.Status().Lanes[0].Err == nil })
		awaitXDP(t, s.port, &s.to)
		s.drain()
		s.expect(100, true)
		if n := s.port.Status().Lanes[0].Fallbacks; n != uint64(round+1) {
			t.Errorf("got %d fallbacks, want %d", n, round+1)
		}
	}
	checkFrameBalance(t, s.port)
}

// TestFailedSocketIsReplaced: until then everything uses the UDP socket.
func TestFailedSocketIsReplaced(t *testing.T) {
	s := newTestNet(t)
	old := s.port.lanes[0].laneSocket.Load()
	if !old.recordError(xsk.ErrQueueGone) {
		t.Fatal("recordError did not report the failure")
	}
	s.expect(100, false)
	notify(s.port.wake)
	expect.Eventually(t, "another socket", func() bool {
		c := s.port.lanes[0].laneSocket.Load()
		return c != nil && c != old
	})
	s.expect(101, true)
	if st := s.port.Status(); st.Lanes[0].Fallbacks != 1 || st.Ready() != 1 || st.Lanes[0].Socket.Sent < 1 {
		t.Errorf("got %+v", st)
	}
	// The new socket is in the program's map.
	before := s.port.Status().Lanes[0].Received
	to := s.endpoint(0, s.port, false)
	_, err := s.peer.WriteToUDPAddrPort(message(4, 148), to.Dst)
	expect.NoError(t, err)
	recvOne(t, s.port.Lane(0))
	if s.port.Status().Lanes[0].Received == before {
		t.Error("data does not arrive through AF_XDP")
	}
	checkFrameBalance(t, s.port)
}

// TestRecreatedDeviceIsUsedAgain deletes the cable and creates another one, whose device has the same name.
func TestRecreatedDeviceIsUsedAgain(t *testing.T) {
	s := newTestNet(t)
	s.link(0, netlink.LinkDel)
	expect.Eventually(t, "the device to be missed", func() bool {
		st := s.port.Status()
		return !st.Attached && st.Err != nil && errors.Is(st.Lanes[0].Err, xsk.ErrGone)
	})
	runs := []underlay.Run{{To: &s.to, Parts: [][]byte{message(4, 100)}, Segments: 1}}
	if s.port.Lane(0).Send(runs) != 1 || runs[0].Err == nil {
		t.Error("sent without a device")
	}
	s.do(0, func() error {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: s.devs[0], TxQLen: -1, NumTxQueues: 1, NumRxQueues: 1})
		veth.PeerName = "other"
		ns, err := os.Open(s.hosts[1].Path())
		if err != nil {
			return err
		}
		defer ns.Close()
		veth.PeerNamespace = netlink.NsFd(ns.Fd())
		return netlink.LinkAdd(veth)
	})
	expect.NoError(t, s.hosts[0].SetUp(s.devs[0], 0, addrs4[0]))
	expect.NoError(t, s.hosts[1].SetUp("other", 0, addrs4[1]))
	expect.Eventually(t, "the new device", func() bool { st := s.port.Status(); return st.Attached && st.Ready() == 1 })
	awaitXDP(t, s.port, &s.to)
	s.drain()
	s.expect(100, true)
}

// TestTaggedFramesAreSentAndReceived needs no VLAN device: the program skips tags of any VLAN.
func TestTaggedFramesAreSentAndReceived(t *testing.T) {
	p := newPair(t, 1)
	a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), p.classify(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	p.awaitXDPBothWays(a, b)
	for _, ipv6 := range []bool{false, true} {
		to := p.endpoint(1, b, ipv6)
		known := a.table.present(targetOf(&to))
		path := &path{reason: ViaXDP, egress: tagged(known.egress, 42)}
		path.headers = newFrameHeader(&path.egress)
		a.table.find(targetOf(&to)).path.Store(path)
		before := b.Status().Lanes[0].Received
		sent := message(4, 1000)
		sendOne(t, a.Lane(0), &to, sent)
		got, from := recvOne(t, b.Lane(0))
		if want := p.endpoint(0, a, ipv6); !bytes.Equal(got, sent) || from.Dst != want.Dst {
			t.Errorf("got %d bytes from %+v, want %d from %+v", len(got), from, len(sent), want)
		}
		if n := b.Status().Lanes[0].Received - before; n != 1 {
			t.Errorf("got %d datagrams through AF_XDP, want 1", n)
		}
	}
}

// TestVLANOnDeviceUsesAFXDP sends and receives tagged frames through AF_XDP.
func TestVLANOnDeviceUsesAFXDP(t *testing.T) {
	p := newPair(t, 1)
	inside := [2]netip.Prefix{netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24")}
	for end := range 2 {
		err := p.hosts[end].Do(func() error {
			parent, err := netlink.LinkByName(p.devs[end])
			if err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = "vlan", parent.Attrs().Index
			return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 42, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("needs a kernel with VLANs (CONFIG_VLAN_8021Q)")
		}
		expect.NoError(t, err)
		expect.NoError(t, p.hosts[end].SetUp("vlan", 0, inside[end]))
	}
	a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), p.classify(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	to := underlay.Endpoint{Dst: netip.AddrPortFrom(inside[1].Addr(), b.LocalPort())}
	awaitXDP(t, a, &to)
	for _, size := range []int{100, 1472} {
		sent := message(4, size)
		sendOne(t, a.Lane(0), &to, sent)
		got, from := recvOne(t, b.Lane(0))
		for len(got) == 0 { // datagrams of awaitXDP
			got, from = recvOne(t, b.Lane(0))
		}
		if !bytes.Equal(got, sent) || from.Dst.Addr() != inside[0].Addr() {
			t.Errorf("got %d bytes from %+v, want %d", len(got), from, len(sent))
		}
	}
	if s := a.Status().Lanes[0]; s.Sent != 2 || s.Slow != 0 {
		t.Errorf("got %+v, want 2 sent through AF_XDP and none slow", s)
	}
	if n := b.Status().Lanes[0].Received; n != 2 {
		t.Errorf("got %d datagrams through AF_XDP, want 2", n)
	}
}

func TestLinkLocalPeersExchangeDatagrams(t *testing.T) {
	p := newPair(t, 1)
	inside := [2]netip.Prefix{netip.MustParsePrefix("fe80::1:1/64"), netip.MustParsePrefix("fe80::1:2/64")}
	for end := range 2 {
		expect.NoError(t, p.hosts[end].SetUp(p.devs[end], 0, inside[end]))
	}
	a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{}), p.classify(1, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	to := underlay.Endpoint{
		Dst: netip.AddrPortFrom(inside[1].Addr(), b.LocalPort()), Src: inside[0].Addr(), Scope: uint32(p.indexOf(0, p.devs[0])),
	}
	awaitXDP(t, a, &to)
	sent := message(4, 100)
	sendOne(t, a.Lane(0), &to, sent)
	got, from := recvOne(t, b.Lane(0))
	for len(got) == 0 {
		got, from = recvOne(t, b.Lane(0))
	}
	want := underlay.Endpoint{
		Dst: netip.AddrPortFrom(inside[0].Addr(), a.LocalPort()), Src: inside[1].Addr(), Scope: uint32(p.indexOf(1, p.devs[1])),
	}
	if !bytes.Equal(got, sent) || from != want {
		t.Fatalf("got %d bytes from %+v, want %+v", len(got), from, want)
	}
	awaitXDP(t, b, &from)
	sendOne(t, b.Lane(0), &from, sent)
	got, back := recvOne(t, a.Lane(0))
	for len(got) == 0 {
		got, back = recvOne(t, a.Lane(0))
	}
	if !bytes.Equal(got, sent) || back != to {
		t.Errorf("got %d bytes back from %+v, want %+v", len(got), back, to)
	}
	if s, r := a.Status().Lanes[0], b.Status().Lanes[0]; s.Sent != 1 || s.Received != 1 || r.Sent != 1 || r.Received != 1 {
		t.Errorf("%+v\n%+v", s, r)
	}
}

// TestLanesBeyondQueuesUseUDP has more lanes than the device has queues.
func TestLanesBeyondQueuesUseUDP(t *testing.T) {
	p := newPair(t, 2)
	u := p.openUDP(0, udp.Config{Lanes: 3})
	a := p.open(0, u, newRedirectAll(t, u.LocalPort()), Config{Binding: Binding{Mode: xsk.Copy}})
	st := a.Status()
	if st.Ready() != 2 || !errors.Is(st.Lanes[2].Err, xsk.ErrNoQueue) {
		t.Fatalf("got %+v", st)
	}
	peer := p.openKernelSocket(1)
	to := p.kernelEndpoint(1, peer, false)
	awaitXDP(t, a, &to)
	for i, want := range []uint64{0, 0, 1} {
		sendOne(t, a.Lane(i), &to, message(4, 100))
		if got := a.Status().Lanes[i].Slow; got != want {
			t.Errorf("lane %d: got %d runs sent through UDP, want %d", i, got, want)
		}
	}
}

func TestBusyDeviceIsRetried(t *testing.T) {
	p := newPair(t, 1)
	first := p.openRedirectAll(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	second := p.openRedirectAll(0, Config{Binding: Binding{Mode: xsk.Copy}}, udp.Config{})
	st := second.Status()
	if st.Err == nil || st.Attached || st.Ready() != 0 {
		t.Fatalf("two at one device: %+v", st)
	}
	expect.NoError(t, first.Close())
	expect.Eventually(t, "its turn", func() bool { st := second.Status(); return st.Attached && st.Ready() == 1 })
}

// TestCloseReleasesAllResources counts descriptors and memory mappings, and checks that the program is detached.
func TestCloseReleasesAllResources(t *testing.T) {
	p := newPair(t, 2)
	before := countResources(t)
	for range 3 {
		u, err := p.openRaw(0)
		expect.NoError(t, err)
		port := p.open(0, u, newRedirectAll(t, u.LocalPort()), Config{Binding: Binding{Mode: xsk.Copy}})
		peer := p.openKernelSocket(1)
		to := p.kernelEndpoint(1, peer, false)
		awaitXDP(t, port, &to)
		sendOne(t, port.Lane(0), &to, message(4, 100))
		expect.NoError(t, port.Close())
		expect.NoError(t, port.Close())
		e := port.supervisor.config.Program.(*redirectAll)
		expect.NoError(t, errors.Join(e.program.Close(), e.xsks.Close(), peer.Close()))
	}
	if after := countResources(t); after != before {
		t.Errorf("before %s, after %s", before, after)
	}
	s := p.doAtEnd0(func() (bool, error) {
		l, err := netlink.LinkByName(p.devs[0])
		return err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached, err
	})
	if s {
		t.Error("the program is still attached")
	}
}

func (p *pair) doAtEnd0(f func() (bool, error)) (yes bool) {
	p.Helper()
	expect.NoError(p.TB, p.hosts[0].Do(func() (err error) { yes, err = f(); return err }))
	return yes
}

// openRaw opens a UDP port without closing it at the end of the test.
func (p *pair) openRaw(end int) (*polled, error) {
	u := &polled{host: p.hosts[end]}
	err := p.hosts[end].Do(func() (err error) { u.Port, err = udp.Open(udp.Config{Lanes: p.queue}); return err })
	return u, err
}

// countResources returns the numbers of descriptors and of AF_XDP ring mappings of the process.
func countResources(t *testing.T) string {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	expect.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	expect.NoError(t, err)
	return fmt.Sprintf("%d descriptors, %d mapped sockets", len(files), bytes.Count(maps, []byte("socket:[")))
}

func TestInvalidConfigIsRefused(t *testing.T) {
	p := newPair(t, 1)
	u := p.openUDP(0, udp.Config{})
	e := newRedirectAll(t, u.LocalPort())
	pipe, _ := underlaytest.Pipe(1)
	for name, c := range map[string]Config{
		"nothing":                {},
		"no program":             {UDP: u, Binding: Binding{Device: "lo"}},
		"no device":              {UDP: u, Binding: Binding{Program: e}},
		"no UDP port":            {Binding: Binding{Program: e, Device: "lo"}},
		"frames of another size": {UDP: u, Binding: Binding{Program: e, Device: "lo", FrameSize: 1000}},
		"lanes without a waiter": {UDP: pipe, Binding: Binding{Program: e, Device: "lo"}},
	} {
		if port, err := Open(c); err == nil {
			t.Errorf("%s was opened", name)
			_ = port.Close()
		}
	}
	if u.Features() == (underlay.Features{}) {
		t.Error("the UDP port was closed")
	}
}
