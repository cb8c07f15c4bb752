// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPathMTUIsMeasured has a router with a smaller MTU between two ropewalks. It says so, or drops silently. A connection inside
// the tunnel then carries data, and none of it in outer fragments.
func TestPathMTUIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for lost probes")
	}
	for _, tt := range []struct {
		name       string
		v6, silent bool
		host, mtu  int // of the cables, and of the router's routes
		inner      int
		args       []string
	}{
		{"IPv4/router that answers", false, false, 1500, 1400, 1328, nil},
		{"IPv4/silent router", false, true, 1500, 1400, 1328, nil},
		{"IPv6/router that answers", true, false, 1500, 1436, 1344, nil},
		{"IPv6/silent router", true, true, 1500, 1436, 1344, nil},
		{"IPv4/silent router/jumbo frames", false, true, 9000, 4000, 3936, nil},
		{"IPv6/silent router/jumbo frames", true, true, 9000, 8900, 8816, nil},
		{"IPv4/silent router/AF_XDP", false, true, 1500, 1400, 1328, []string{"--underlay", "xdp"}},
		{"IPv6/silent router/AF_XDP", true, true, 1500, 1360, 1280, []string{"--underlay", "xdp"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each waits, for 15 s or more
			l := newLab(t)
			l.connectHosts(tt.v6, false)
			l.setCables(tt.host)
			l.narrowRouter(tt.mtu, tt.silent)
			l.startEngine(tt.args...)
			for _, s := range l.both() {
				expect.NoError(t, s.host.SetUp(s.ifname, tt.host-80))
			}
			for _, s := range l.both() {
				l.awaitPathMTU(s, tt.mtu, tt.inner)
			}
			if n := l.fragmentsOf(func() { expect.NoError(t, l.echoTCP(1<<20)) }); n > 0 {
				t.Errorf("%d outer fragments arrived, want none", n)
			}
		})
	}
}

// TestPathMTUToStockPeer has two peers that answer no probes, and a router between them with a smaller MTU. It reports that, and each
// side believes it. Packets of 1,280 bytes inside, which IPv6 must carry, leave in fragments if they do not fit, and nothing else does.
func TestPathMTUToStockPeer(t *testing.T) {
	for _, tt := range []struct {
		name            string
		v6              bool
		host, mtu       int
		size, fragments int // of a datagram inside that is not too large for IPv6
		args            []string
	}{
		{"IPv4", false, 1500, 1400, 1280, 0, nil},
		{"IPv6", true, 1500, 1400, 1280, 0, nil},
		{"IPv4/1280", false, 1500, 1280, 1280, 1, nil},
		{"IPv6/1280", true, 1500, 1280, 1280, 1, nil},
		{"IPv6/1280/AF_XDP", true, 1500, 1280, 1280, 1, []string{"--underlay", "xdp"}},
		{"IPv4/jumbo frames", false, 9000, 4000, 1280, 0, nil},
		{"IPv6/jumbo frames", true, 9000, 4000, 1280, 0, nil},
		{"IPv4/AF_XDP", false, 1500, 1400, 1280, 0, []string{"--underlay", "xdp"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(tt.v6, false)
			l.setCables(tt.host)
			l.startEngine(append(tt.args, "--spread", "off")...)
			l.narrowRouter(tt.mtu, false)
			for _, s := range l.both() {
				expect.NoError(t, s.host.SetUp(s.ifname, tt.host-80))
			}
			n := l.fragmentsOf(func() {
				expect.EventuallyNoError(t, "the report of the router", func() error {
					if err := l.echoTCP(1 << 20); err != nil {
						return err
					}
					if p := l.pathMTU(l.left); p.State != config.PathMTUICMP || p.Bytes != tt.mtu {
						return fmt.Errorf("path MTU is %+v, want %d of an ICMP error", p, tt.mtu)
					}
					return nil
				})
			})
			if n > 0 {
				t.Errorf("%d outer fragments arrived, want none", n)
			}
			l.wantInner6(tt.size, tt.fragments > 0)
		})
	}
}

// TestOuterFragmentsArePermitted has a router that drops silently what does not fit and may not be fragmented.
func TestOuterFragmentsArePermitted(t *testing.T) {
	l := newLab(t)
	l.connectHosts(false, false)
	l.narrowRouter(1400, true)
	l.startEngine("--spread", "off", "--outer-fragments", "on")
	if n := l.fragmentsOf(func() { expect.NoError(t, l.echoTCP(1<<20)) }); n == 0 {
		t.Error("no outer fragment arrived, want some")
	}
	if p := l.pathMTU(l.left); p.State != config.PathMTUUnknown {
		t.Errorf("path MTU is %+v, want it unknown", p)
	}
}

// TestRouteMTULimitsPackets has a route with an MTU of its own: no router would report it.
func TestRouteMTULimitsPackets(t *testing.T) {
	l := newLab(t)
	l.connectHosts(false, false)
	for _, s := range l.both() {
		out, err := s.host.Command(context.Background(), "sh", "-c", "ip route change $(ip route show to "+
			l.other(s).outer.Masked().String()+") mtu 1300").CombinedOutput()
		if err != nil {
			t.Fatalf("ip route: %v\n%s", err, out)
		}
	}
	l.startEngine("--spread", "off")
	expect.NoError(t, l.echoTCP(1<<20))
	if p := l.pathMTU(l.left); p.State != config.PathMTURoute || p.Bytes != 1300 || p.InnerBytes != 1232 {
		t.Errorf("path MTU is %+v, want 1300 from the route, and 1232 inside", p)
	}
}

// setCables sets the MTU of all cables.
func (l *lab) setCables(mtu int) {
	l.Helper()
	for _, s := range l.both() {
		expect.NoError(l, s.host.SetUp(cable, mtu))
	}
	for _, device := range []string{fromLeft, toRight} {
		expect.NoError(l, l.router.SetUp(device, mtu))
	}
}

// TestLyingRouterDoesNotNarrowPath has a router that claims that messages which it forwards are too large. It quotes them as they are,
// or with another receiver index, as somebody who does not see them.
func TestLyingRouterDoesNotNarrowPath(t *testing.T) {
	for _, tt := range []struct {
		name     string
		forged   bool
		believed bool
	}{{"own message", false, true}, {"forged message", true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(false, false)
			l.startEngine()
			l.awaitPathMTU(l.left, 1480, 0)
			var lies atomic.Uint64
			c, err := l.router.Capture(netlab.CaptureConfig{Device: fromLeft, Handle: func(p netlab.Packet) {
				if ip := p.Data[min(14, len(p.Data)):]; !p.Outgoing && p.Len > 700 && len(ip) >= 60 && ip[9] == unix.IPPROTO_UDP && ip[28] == 4 && lies.Add(1) <= 20 {
					expect.NoError(t, l.claimTooBig(ip[:60], tt.forged))
				}
			}})
			expect.NoError(t, err)
			expect.NoError(t, l.echoTCP(1<<20))
			expect.NoError(t, c.Stop())
			if lies.Load() == 0 {
				t.Error("the router saw no message")
			}
			if n := l.pathMTUErrors(l.left); n.Believed > 0 != tt.believed || n.Ignored > 0 == tt.believed {
				t.Errorf("got %+v of %d, want all believed: %v", n, lies.Load(), tt.believed)
			}
			l.awaitPathMTU(l.left, 1480, 0)
		})
	}
}

// claimTooBig sends Fragmentation Needed from the router to the left, with the MTU 600, about the IPv4 packet that begins with quoted.
func (l *lab) claimTooBig(quoted []byte, forged bool) error {
	message := append([]byte{3, 4, 0, 0, 0, 0, 600 >> 8, 600 & 0xff}, quoted...)
	if forged {
		message[8+32] ^= 0xff // the receiver index
	}
	binary.BigEndian.PutUint16(message[2:], ^packet.Fold(packet.Sum(message, 0)))
	return l.router.Do(func() error {
		c, err := net.DialIP("ip4:icmp", nil, &net.IPAddr{IP: l.left.outer.Addr().AsSlice()})
		if err != nil {
			return err
		}
		_, err = c.Write(message)
		return errors.Join(err, c.Close())
	})
}

func (l *lab) pathMTUErrors(s *side) config.ICMPErrorCounts {
	l.Helper()
	c, err := uapi.Dial(s.ifname)
	expect.NoError(l, err)
	defer c.Close()
	var stats struct {
		Errors config.ICMPErrorCounts `json:"path_mtu_errors"`
	}
	expect.NoError(l, c.Stats(&stats))
	return stats.Errors
}

// wantInner6 sends an IPv6 packet of a size inside the tunnel, and asserts that it arrives, whole or in outer fragments.
func (l *lab) wantInner6(size int, fragmented bool) {
	l.Helper()
	for i, s := range l.both() {
		s.inner6 = netip.AddrFrom16([16]byte{0xfd, 0xaa, 15: byte(1 + i)})
	}
	for _, s := range l.both() {
		expect.NoError(l, s.host.Do(func() error {
			link, err := netlink.LinkByName(s.ifname)
			if err != nil {
				return err
			}
			return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: s.inner6.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD})
		}))
		expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
			all := net.IPNet{IP: l.other(s).inner6.AsSlice(), Mask: net.CIDRMask(128, 128)}
			return c.ConfigureDevice(s.ifname, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: l.other(s).key.PublicKey(), UpdateOnly: true, AllowedIPs: []net.IPNet{all},
			}}})
		}))
	}
	var receiver, sender net.PacketConn
	open := func(s *side, c *net.PacketConn) {
		expect.NoError(l, s.host.Do(func() (err error) {
			*c, err = net.ListenPacket("udp6", netip.AddrPortFrom(s.inner6, 0).String())
			return err
		}))
		l.Cleanup(func() { _ = (*c).Close() })
	}
	open(l.right, &receiver)
	open(l.left, &sender)
	payload := make([]byte, size-48)
	n := l.fragmentsOf(func() {
		expect.EventuallyNoError(l, "an IPv6 packet to arrive", func() error {
			_, err := sender.WriteTo(payload, receiver.LocalAddr())
			if err == nil {
				err = receiver.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			}
			if err == nil {
				_, _, err = receiver.ReadFrom(make([]byte, size))
			}
			return err
		})
	})
	if n > 0 != fragmented {
		l.Errorf("%d outer fragments arrived, want some: %v", n, fragmented)
	}
}

// narrowRouter gives the router's routes an MTU: veth devices with a smaller one would drop what they receive, too. A silent router
// tells nobody what it drops for it.
func (l *lab) narrowRouter(mtu int, silent bool) {
	l.Helper()
	expect.NoError(l, l.router.Do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		for _, r := range routes {
			for _, s := range l.both() {
				if r.Dst != nil && r.Dst.String() == s.outer.Masked().String() {
					r.MTU = mtu
					err = errors.Join(err, netlink.RouteReplace(&r))
				}
			}
		}
		return err
	}))
	if !silent {
		return
	}
	if _, err := exec.LookPath("nft"); err != nil {
		l.Skipf("needs nft(8): %v", err)
	}
	cmd := l.router.Command(context.Background(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table inet silent { chain output { type filter hook output priority 0; " +
		"icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }")
	if out, err := cmd.CombinedOutput(); err != nil {
		l.Fatalf("nft: %v\n%s", err, out)
	}
}

// awaitPathMTU sends packets both ways until a side has confirmed the path MTU.
func (l *lab) awaitPathMTU(s *side, mtu, inner int) {
	l.Helper()
	var sockets []net.PacketConn
	for _, s := range l.both() {
		expect.NoError(l, s.host.Do(func() error {
			c, err := net.ListenPacket("udp4", netip.AddrPortFrom(s.inner.Addr(), 0).String())
			sockets = append(sockets, c)
			return err
		}))
		defer sockets[len(sockets)-1].Close()
	}
	expect.EventuallyNoError(l, s.name+" to find the path MTU", func() error {
		for range 20 {
			for i, c := range sockets {
				if _, err := c.WriteTo(make([]byte, 1000), sockets[1-i].LocalAddr()); err != nil {
					return err
				}
			}
		}
		p := l.pathMTU(s)
		if p.State != config.PathMTUConfirmed || p.Bytes > mtu || p.InnerBytes != inner {
			return fmt.Errorf("path MTU is %+v, want at most %d confirmed, and %d inside", p, mtu, inner)
		}
		return nil
	})
}

func (l *lab) pathMTU(s *side) config.PathMTU {
	l.Helper()
	c, err := uapi.Dial(s.ifname)
	expect.NoError(l, err)
	defer c.Close()
	var stats struct {
		PathMTU config.PathMTUReport `json:"path_mtu"`
	}
	expect.NoError(l, c.Stats(&stats))
	return stats.PathMTU[l.other(s).key.PublicKey().String()]
}

// echoTCP carries n bytes through a TCP connection inside the tunnel, and back.
func (l *lab) echoTCP(n int) error {
	var listener net.Listener
	if err := l.right.host.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(l.right.inner.Addr(), 0).String())
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	return l.left.host.Do(func() error {
		conn, err := net.DialTimeout("tcp4", listener.Addr().String(), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(make([]byte, n))
			sent <- err
		}()
		err = conn.SetDeadline(time.Now().Add(patience))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, n))
		}
		return errors.Join(err, <-sent)
	})
}

// fragmentsOf counts the fragments that arrive on the right while f runs.
func (l *lab) fragmentsOf(f func()) uint64 {
	l.Helper()
	var fragments atomic.Uint64
	c, err := l.right.host.Capture(netlab.CaptureConfig{Device: cable, Handle: func(p netlab.Packet) {
		if !p.Outgoing && isFragment(p.Data) {
			fragments.Add(1)
		}
	}})
	expect.NoError(l, err)
	f()
	expect.NoError(l, c.Stop())
	return fragments.Load()
}

// isFragment reports whether an Ethernet frame carries an IP fragment.
func isFragment(frame []byte) bool {
	if len(frame) < 34 {
		return false
	}
	switch ip := frame[14:]; binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return binary.BigEndian.Uint16(ip[6:])&0x3fff != 0
	case 0x86dd:
		return ip[6] == 44
	}
	return false
}
