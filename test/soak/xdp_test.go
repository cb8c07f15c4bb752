// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/autounderlay"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	lanes      = 2
	listenPort = 51820
	// clockSpeed is the factor by which the devices' clocks run faster. A session lasts three seconds instead of two minutes, and a
	// slow machine still has most of a second (half a minute of device time) for a handshake.
	clockSpeed = 40
	// rekeyAfter is WireGuard's REKEY_AFTER_TIME.
	rekeyAfter = 120 * time.Second
	// minDuration is enough for a new session even if one or two handshakes are lost.
	minDuration = 10 * time.Second
	patience    = 30 * time.Second
)

// end is one of two hosts with a cable between them, and the WireGuard device in it.
type end struct {
	host         *netlab.Host
	name         string // of the cable's network device
	outer, inner netip.Prefix
	key          noise.PrivateKey
	dev          *device.Device
	port         atomic.Pointer[autounderlay.Port]
}

// xdpTunnel is a tunnel between two hosts that carries data over AF_XDP.
type xdpTunnel struct {
	*testing.T
	ends [2]*end
}

func newXDPTunnel(t *testing.T) *xdpTunnel {
	t.Helper()
	lab, err := netlab.New("soak")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	x := &xdpTunnel{T: t}
	for i := range x.ends {
		e := &end{
			outer: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
			inner: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 24),
		}
		e.host, err = lab.Host([]string{"left", "right"}[i])
		if errors.Is(err, netlab.ErrPrivileges) {
			t.Skip(err)
		}
		expect.NoError(t, err)
		e.key, err = noise.NewPrivateKey(rand.Reader)
		expect.NoError(t, err)
		x.ends[i] = e
	}
	a, b := x.ends[0], x.ends[1]
	cable, err := lab.Cable(a.host, b.host, netlab.CableConfig{
		Queues: lanes, MTU: 1500, AddrsA: []netip.Prefix{a.outer}, AddrsB: []netip.Prefix{b.outer},
	})
	expect.NoError(t, err)
	a.name, b.name = cable.DeviceA, cable.DeviceB
	x.start(a, b)
	x.start(b, a)
	return x
}

// start starts one end's device with the other end as its peer.
func (x *xdpTunnel) start(e, peer *end) {
	x.Helper()
	var inside tun.Device
	expect.NoError(x.T, e.host.Do(func() (err error) {
		inside, err = tun.Open(tun.Config{Name: "rw0", Queues: lanes})
		return err
	}))
	began := time.Now()
	e.dev = device.New(device.Config{
		TUN: inside, Log: slog.New(slog.DiscardHandler),
		Clock:    engine.Clock(func() int64 { return clockSpeed * int64(time.Since(began)) }),
		OpenPort: func(o device.PortOptions) (underlay.Port, error) { return e.open(o) },
	})
	x.Cleanup(e.dev.Close)
	e.dev.Start()
	port, mode := uint16(listenPort), config.UnderlayXDP
	expect.NoError(x.T, e.dev.Configure(config.Device{
		PrivateKey: &e.key, ListenPort: &port, Settings: config.Settings{Underlay: &mode},
		Peers: []config.Peer{{
			PublicKey:  peer.key.Public(),
			Endpoint:   &config.Endpoint{AddrPort: netip.AddrPortFrom(peer.outer.Addr(), listenPort)},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(peer.inner.Addr(), 32)}},
		}},
	}))
	expect.NoError(x.T, e.host.SetUp("rw0", 0, e.inner))
}

// open opens the underlay in the host's namespace. A goroutine of the device calls it.
func (e *end) open(o device.PortOptions) (underlay.Port, error) {
	var p *autounderlay.Port
	err := e.host.Do(func() error {
		u, err := udp.Open(udp.Config{Port: o.Port, Lanes: o.Lanes, Mark: o.Mark})
		if err != nil {
			return err
		}
		p, err = autounderlay.Open(autounderlay.Config{UDP: u, Mode: config.UnderlayXDP, Mark: o.Mark, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return errors.Join(err, u.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	e.port.Store(p)
	return p, nil
}

// handshake returns the time of the last handshake.
func (e *end) handshake() time.Time { return e.dev.Status().Peers[0].LastHandshake }

func (x *xdpTunnel) await(what string, done func() bool) {
	x.Helper()
	expect.EventuallyNoError(x, what, func() error {
		if !done() {
			return fmt.Errorf("%+v, %+v", x.status(0), x.status(1))
		}
		return nil
	})
}

func (x *xdpTunnel) status(i int) (s xdp.Status) {
	if p := x.ends[i].port.Load(); p != nil {
		s = p.Status()
	}
	return s
}

// waitForXDP waits until both ends send and receive over AF_XDP.
func (x *xdpTunnel) waitForXDP() {
	x.Helper()
	x.await("both ends to use AF_XDP", func() bool {
		return x.exchange() && x.usesXDP(0) && x.usesXDP(1)
	})
}

func (x *xdpTunnel) usesXDP(i int) bool {
	var sum xdp.LaneStatus
	s := x.status(i)
	for _, l := range s.Lanes {
		sum.Sent += l.Sent
		sum.Received += l.Received
	}
	return s.Ready() == lanes && sum.Sent > 0 && sum.Received > 0
}

// exchange sends one byte over TCP in each direction and reports whether both arrived.
func (x *xdpTunnel) exchange() bool {
	from, to, err := x.dial(0, time.Second)
	if err != nil {
		return false
	}
	defer from.Close()
	defer to.Close()
	err = errors.Join(from.SetDeadline(time.Now().Add(time.Second)), to.SetDeadline(time.Now().Add(time.Second)))
	for _, c := range [][2]net.Conn{{from, to}, {to, from}} {
		_, werr := c[0].Write([]byte{1})
		_, rerr := c[1].Read(make([]byte, 1))
		err = errors.Join(err, werr, rerr)
	}
	return err == nil
}

// dial opens a TCP connection from end i to the other end through the tunnel.
func (x *xdpTunnel) dial(i int, limit time.Duration) (from, to net.Conn, err error) {
	a, b := x.ends[i], x.ends[1-i]
	var ln *net.TCPListener
	err = b.host.Do(func() (err error) {
		ln, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.inner.Addr(), 0)))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	err = a.host.Do(func() (err error) {
		from, err = net.DialTimeout("tcp", ln.Addr().String(), limit)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if err = ln.SetDeadline(time.Now().Add(limit)); err == nil {
		to, err = ln.Accept()
	}
	if err != nil {
		return nil, nil, errors.Join(err, from.Close())
	}
	return from, to, nil
}

// stream sends consecutive numbers until over is closed and checks that all arrive in order.
func stream(from, to net.Conn, over <-chan struct{}) (n uint64, err error) {
	sent := make(chan error, 1)
	go func() { sent <- writeNumbers(from, over) }()
	if n, err = checkNumbers(to); err != nil {
		_ = from.Close() // without a reader the sender would block forever
		<-sent
		return n, err
	}
	return n, <-sent
}

const chunk = 64 << 10

// writeNumbers writes consecutive numbers from 0 until over is closed.
func writeNumbers(to net.Conn, over <-chan struct{}) error {
	b := make([]byte, chunk)
	for next := uint64(0); ; {
		select {
		case <-over:
			return to.(interface{ CloseWrite() error }).CloseWrite()
		default:
		}
		for i := 0; i < len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], next)
			next++
		}
		if _, err := to.Write(b); err != nil {
			return err
		}
	}
}

// checkNumbers reads consecutive numbers from 0 and returns how many it read.
func checkNumbers(from net.Conn) (next uint64, err error) {
	b := make([]byte, chunk)
	for {
		n, err := io.ReadFull(from, b)
		for i := 0; i+8 <= n; i += 8 {
			if got := binary.LittleEndian.Uint64(b[i:]); got != next {
				return next, fmt.Errorf("read number %d, want %d", got, next)
			}
			next++
		}
		switch {
		case err == io.EOF:
			return next, nil
		case err != nil:
			return next, err
		}
	}
}

// corruptingConn changes the first byte of each read.
type corruptingConn struct{ net.Conn }

func (c corruptingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		b[0] ^= 1
	}
	return n, err
}

// TestStreamFailsOnCorruptData checks that stream returns although its sender is blocked on a full socket buffer.
func TestStreamFailsOnCorruptData(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer ln.Close()
	from, err := net.Dial("tcp", ln.Addr().String())
	expect.NoError(t, err)
	to, err := ln.Accept()
	expect.NoError(t, err)
	defer to.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := stream(from, corruptingConn{to}, make(chan struct{}))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the corrupt number was not detected")
		}
	case <-time.After(patience):
		t.Fatal("the stream did not end")
	}
}

// TestAllXDPFramesAreReturned runs TCP streams in both directions over AF_XDP through many sessions. At the end every UMEM frame must
// be returned to its pool.
func TestAllXDPFramesAreReturned(t *testing.T) {
	skipUnless(t, "xdp")
	requireXDP(t)
	x := newXDPTunnel(t)
	x.waitForXDP()
	over := make(chan struct{})
	var streams sync.WaitGroup
	var numbers atomic.Uint64
	var ends [4][2]net.Conn
	for i := range ends { // all connections first: a failed dial would leave the started streams running
		from, to, err := x.dial(i%2, patience)
		expect.NoError(t, err)
		ends[i] = [2]net.Conn{from, to}
	}
	for i, c := range ends {
		streams.Go(func() {
			defer c[0].Close()
			defer c[1].Close()
			n, err := stream(c[0], c[1], over)
			numbers.Add(n)
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	length := max(*duration, minDuration)
	sessions := x.sessions(length)
	close(over)
	for _, c := range ends {
		late := time.Now().Add(patience)
		_ = errors.Join(c[0].SetDeadline(late), c[1].SetDeadline(late)) // a failed stream's connections are closed already
	}
	streams.Wait()
	t.Logf("%d MiB, %d new sessions", numbers.Load()*8>>20, sessions)
	if least := max(int(length*clockSpeed/rekeyAfter/2), 1); sessions < least {
		t.Errorf("got %d new sessions, want at least %d", sessions, least)
	}
	x.wantAllFramesReturned()
}

// sessions waits for d and returns the number of new sessions. It returns early if the test has failed.
func (x *xdpTunnel) sessions(d time.Duration) (n int) {
	x.Helper()
	last := x.ends[0].handshake()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if now := x.ends[0].handshake(); !now.Equal(last) {
			n, last = n+1, now
		}
		if x.Failed() {
			return n
		}
	}
	return n
}

// wantAllFramesReturned asserts that every frame is returned, that no frame ever had two owners, and that AF_XDP was always in use.
func (x *xdpTunnel) wantAllFramesReturned() {
	x.Helper()
	for i, e := range x.ends {
		s := x.status(i)
		x.await("all frames to be returned", func() bool {
			s = x.status(i) // checked below, too: a keepalive may arrive at any time
			for j := range s.Lanes {
				if !returned(&s.Lanes[j]) {
					return false
				}
			}
			return true
		})
		for j := range s.Lanes {
			l := &s.Lanes[j]
			x.Logf("end %d, lane %d: %+v", i, j, *l)
			if !balanced(l) || l.Err != nil || l.Fallbacks != 0 || l.Malformed != 0 {
				x.Errorf("end %d, lane %d lost or duplicated frames, or left AF_XDP", i, j)
			}
		}
		if path := e.port.Load().Report().Path; path != config.UnderlayXDP {
			x.Errorf("end %d uses the underlay %s, want %s", i, path, config.UnderlayXDP)
		}
	}
}

func requireXDP(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW and a kernel with AF_XDP: %v", err)
	}
	expect.NoError(t, unix.Close(fd))
}

// balanced reports whether no frame was refused or named by a party that did not own it, and all frames are back.
func balanced(l *xdp.LaneStatus) bool {
	return l.Socket.Rejected+l.Socket.FrameOwnershipErrors+l.Socket.RxInvalid+l.Socket.TxInvalid == 0 && returned(l)
}

// returned reports whether the counts are those of a socket that is neither receiving nor sending.
func returned(l *xdp.LaneStatus) bool { return l.RXHeld == 0 && l.TXHeld == 0 && l.TXKernel == 0 }
