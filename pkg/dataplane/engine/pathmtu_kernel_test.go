// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/test/expect"
)

// end is an engine behind a real TUN device in a network namespace, with one peer.
type end struct {
	host   *netlab.Host
	engine *Engine
	peer   *Peer
}

// newEnd gives host a tunnel device with those addresses, routes to networks through it, and one peer that has them all.
func newEnd(t *testing.T, host *netlab.Host, port *underlaytest.Fake, to underlay.Endpoint, addrs, networks []string) *end {
	t.Helper()
	var d tun.Device
	expect.NoError(t, host.Do(func() (err error) {
		d, err = tun.Open(tun.Config{Name: "rw0"})
		return err
	}))
	e := &end{host: host, engine: New(Config{Device: d, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader})}
	t.Cleanup(func() {
		expect.NoError(t, d.Close())
		e.engine.Wait()
		expect.NoError(t, e.engine.Detach())
	})
	expect.NoError(t, host.SetUp("rw0", 0, prefixes(addrs)...))
	e.peer = e.engine.NewPeer(&lanetest.Owner{})
	e.peer.Endpoint.Store(&to)
	for _, n := range prefixes(networks) {
		expect.NoError(t, host.RouteThrough(n, "rw0"))
		e.engine.Routes.Update(func(r *peer.Editor[*Peer]) { r.Add(n, e.peer) })
	}
	expect.NoError(t, e.engine.Attach(port))
	e.engine.Start()
	return e
}

func prefixes(list []string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// connect gives two ends a session.
func connect(t *testing.T, a, b *end) {
	t.Helper()
	sessions := [2]*Session{{Peer: a.peer}, {Peer: b.peer}}
	k := noise.Keys{Initiator: true}
	_, _ = rand.Read(k.Send[:])
	_, _ = rand.Read(k.Recv[:])
	var err error
	k.Local, err = a.engine.Sessions.Add(sessions[0])
	expect.NoError(t, err)
	k.Remote, err = b.engine.Sessions.Add(sessions[1])
	expect.NoError(t, err)
	for i, e := range []*end{a, b} {
		keys, err := session.NewKeypair(&k, e.engine.cfg.Clock())
		expect.NoError(t, err)
		sessions[i].Keys.Store(keys)
		e.peer.Current.Store(keys)
		k.Send, k.Recv, k.Local, k.Remote, k.Initiator = k.Recv, k.Send, k.Remote, k.Local, false
	}
}

// newEnds returns a tunnel between two network namespaces, and a host that is behind the first.
func newEnds(t *testing.T) (behind *netlab.Host, a, b *end) {
	t.Helper()
	lab, hosts := netlabtest.Hosts(t, "pathmtu", "behind", "a", "b")
	_, err := lab.Cable(hosts[0], hosts[1], netlab.CableConfig{
		Queues: 1, MTU: 1500,
		AddrsA: prefixes([]string{"10.7.0.2/24", "fd07::2/64"}), AddrsB: prefixes([]string{"10.7.0.1/24", "fd07::1/64"}),
	})
	expect.NoError(t, err)
	expect.NoError(t, hosts[1].Forward())
	expect.NoError(t, hosts[0].RouteVia(netip.MustParsePrefix("10.8.0.0/16"), netip.MustParseAddr("10.7.0.1")))
	expect.NoError(t, hosts[0].RouteVia(netip.MustParsePrefix("fd08::/16"), netip.MustParseAddr("fd07::1")))
	left, right := underlaytest.Pipe(1)
	a = newEnd(t, hosts[1], left, right.Endpoint(false), []string{"10.8.1.1/32", "fd08:1::1/128"}, []string{"10.8.2.0/24", "fd08:2::/64"})
	b = newEnd(t, hosts[2], right, left.Endpoint(false), []string{"10.8.2.1/32", "fd08:2::1/128"},
		[]string{"10.8.1.1/32", "10.7.0.0/24", "fd08:1::1/128", "fd07::/64"})
	connect(t, a, b)
	return hosts[0], a, b
}

// option sets or, with a negative value, reads the socket option of the connection's family.
func option(t *testing.T, c syscall.Conn, ipv6 bool, v4, v6, value int) (got int) {
	t.Helper()
	raw, err := c.SyscallConn()
	expect.NoError(t, err)
	level, name := unix.SOL_IP, v4
	if ipv6 {
		level, name = unix.SOL_IPV6, v6
	}
	expect.NoError(t, errors.Join(raw.Control(func(fd uintptr) {
		if value < 0 {
			got, err = unix.GetsockoptInt(int(fd), level, name)
		} else {
			err = unix.SetsockoptInt(int(fd), level, name, value)
		}
	}), err))
	return got
}

// dialUDP returns a UDP socket of host that is connected with address, with that IP_MTU_DISCOVER.
func dialUDP(t *testing.T, host *netlab.Host, address string, discover int) *net.UDPConn {
	t.Helper()
	to := netip.MustParseAddrPort(address)
	var c *net.UDPConn
	expect.NoError(t, host.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	option(t, c, to.Addr().Is6(), unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, discover)
	return c
}

// testMTU is the path MTU of the tests.
const testMTU = 1300

func pathMTU(t *testing.T, c syscall.Conn, ipv6 bool) int {
	t.Helper()
	return option(t, c, ipv6, unix.IP_MTU, unix.IPV6_MTU, -1)
}

func addressesOfB(ipv6 bool) (live, dead string) {
	if ipv6 {
		return "[fd08:2::1]:7", "[fd08:2::9]:7"
	}
	return "10.8.2.1:7", "10.8.2.9:7"
}

// eachSender runs a test for a sender on the tunnel's host and for one behind it.
func eachSender(t *testing.T, test func(t *testing.T, from *netlab.Host, a, b *end, ipv6 bool)) {
	eachFamily(t, func(t *testing.T, ipv6 bool) {
		behind, a, b := newEnds(t)
		t.Run("local", func(t *testing.T) { test(t, a.host, a, b, ipv6) })
		t.Run("forwarded", func(t *testing.T) { test(t, behind, a, b, ipv6) })
	})
}

func TestKernelUDPSocketLearnsPathMTU(t *testing.T) {
	eachSender(t, func(t *testing.T, from *netlab.Host, a, _ *end, ipv6 bool) {
		a.peer.SetPathMTU(testMTU)
		to, _ := addressesOfB(ipv6)
		c := dialUDP(t, from, to, unix.IP_PMTUDISC_DO)
		expect.Eventually(t, "path MTU of the UDP socket", func() bool {
			_, _ = c.Write(make([]byte, 1350)) // fits the TUN; fails once the path MTU is known
			return pathMTU(t, c, ipv6) == testMTU
		})
	})
}

// connectTCP connects from with address of to. What arrives there is sent to received at its end.
func connectTCP(t *testing.T, from, to *netlab.Host, address string) (c *net.TCPConn, received <-chan []byte) {
	t.Helper()
	at, all := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)), make(chan []byte, 1)
	var l *net.TCPListener
	expect.NoError(t, to.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", at)
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		defer close(all)
		c, err := l.Accept()
		if err != nil {
			return
		}
		got, _ := io.ReadAll(c)
		_ = c.Close()
		all <- got
	}()
	expect.NoError(t, from.Do(func() (err error) {
		c, err = net.DialTCP("tcp", nil, at)
		return err
	}))
	return c, all
}

func TestKernelTCPLearnsPathMTU(t *testing.T) {
	eachSender(t, func(t *testing.T, from *netlab.Host, a, b *end, ipv6 bool) {
		a.peer.SetPathMTU(testMTU)
		to, _ := addressesOfB(ipv6)
		c, received := connectTCP(t, from, b.host, to)
		sent := make([]byte, 1<<20)
		_, _ = rand.Read(sent)
		_, err := c.Write(sent)
		expect.NoError(t, err)
		expect.Eventually(t, "path MTU of the TCP connection", func() bool { return pathMTU(t, c, ipv6) == testMTU })
		expect.NoError(t, c.Close())
		if got := <-received; !bytes.Equal(got, sent) {
			t.Errorf("got %d bytes, want the %d that were sent", len(got), len(sent))
		}
		if a.engine.Stats().Lanes[0].Drops[drop.TXPacketTooBig.String()] == 0 {
			t.Error("no packet was too big")
		}
	})
}

// TestForwardedTrainsPassWhole sends so much that TCP builds the largest trains of a veth, 65,536 bytes. The kernel must not segment them in
// front of the TUN.
func TestForwardedTrainsPassWhole(t *testing.T) {
	eachFamily(t, func(t *testing.T, ipv6 bool) {
		behind, a, b := newEnds(t)
		to, _ := addressesOfB(ipv6)
		c, received := connectTCP(t, behind, b.host, to)
		const bytes = 16 << 20
		_, err := c.Write(make([]byte, bytes))
		expect.NoError(t, err)
		expect.NoError(t, c.Close())
		if got := len(<-received); got != bytes {
			t.Errorf("got %d bytes, want %d", got, bytes)
		}
		tx := a.engine.Stats().Lanes[0]
		if tx.TxPackets < 12*tx.TxTrains {
			t.Errorf("%d packets left the TUN in %d trains, want at least 12 per train", tx.TxPackets, tx.TxTrains)
		}
		t.Logf("%d packets in %d trains", tx.TxPackets, tx.TxTrains)
	})
}

// TestKernelReassemblesFragments sends datagrams without DF.
func TestKernelReassemblesFragments(t *testing.T) {
	behind, a, b := newEnds(t)
	a.peer.SetPathMTU(500)
	var server *net.UDPConn
	expect.NoError(t, b.host.Do(func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{Port: 7})
		return err
	}))
	defer func() { _ = server.Close() }()
	for _, from := range []*netlab.Host{a.host, behind} {
		c := dialUDP(t, from, "10.8.2.1:7", unix.IP_PMTUDISC_DONT)
		sent, got := make([]byte, 9000), make([]byte, 10000) // the kernel sends fragments already
		_, _ = rand.Read(sent)
		_, err := c.Write(sent)
		expect.NoError(t, err)
		expect.NoError(t, server.SetReadDeadline(time.Now().Add(20*time.Second)))
		n, err := server.Read(got)
		if err != nil || !bytes.Equal(got[:n], sent) {
			t.Errorf("got %d bytes, want those that were sent: %v", n, err)
		}
	}
	if n := a.engine.Stats().Lanes[0].Drops[drop.TXPacketTooBig.String()]; n != 0 {
		t.Errorf("got %d drops, want 0", n)
	}
}

func TestKernelReportsHostUnreachable(t *testing.T) {
	eachSender(t, func(t *testing.T, from *netlab.Host, a, _ *end, ipv6 bool) {
		a.engine.Routes.Update(func(r *peer.Editor[*Peer]) { r.RemoveOwner(a.peer) })
		_, to := addressesOfB(ipv6)
		c := dialUDP(t, from, to, unix.IP_PMTUDISC_DO)
		option(t, c, ipv6, unix.IP_RECVERR, unix.IPV6_RECVERR, 1)
		expect.EventuallyNoError(t, "Host Unreachable", func() error { // a loaded machine may lose the datagram or the answer
			_, err := c.Write([]byte("hello"))
			if err == nil {
				err = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			}
			if err == nil {
				_, err = c.Read(make([]byte, 9))
			}
			if errors.Is(err, unix.EHOSTUNREACH) {
				return nil
			}
			return errors.Join(errors.New("want EHOSTUNREACH"), err)
		})
	})
}
