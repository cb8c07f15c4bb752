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

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/underlay/auto"
	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/underlay/xdp"
)

const (
	lanes      = 2
	listenPort = 51820
	// haste is how much faster the devices' clocks run: a session lasts three seconds instead of two minutes, and what comes with
	// it has still half a minute of theirs to spare on a machine that is slow.
	haste = 40
	// rekeyAfter is WireGuard's REKEY_AFTER_TIME.
	rekeyAfter = 120 * time.Second
	// shortest is enough for a new session, though a handshake or two be lost.
	shortest = 10 * time.Second
	patience = 30 * time.Second
)

// end is one of two hosts with a cable between them, and the tunnel's device in it.
type end struct {
	host         *netlab.Host
	name         string // of the cable's end
	outer, inner netip.Prefix
	key          noise.PrivateKey
	dev          *device.Device
	port         atomic.Pointer[auto.Port]
}

// express is a tunnel whose data goes by AF_XDP.
type express struct {
	*testing.T
	ends [2]*end
}

func newExpress(t *testing.T) *express {
	t.Helper()
	lab, err := netlab.New("soak")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	x := &express{T: t}
	for i := range x.ends {
		e := &end{
			outer: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
			inner: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 24),
		}
		e.host, err = lab.Host([]string{"left", "right"}[i])
		if errors.Is(err, netlab.ErrPrivileges) {
			t.Skip(err)
		}
		must(t, err)
		e.key, err = noise.NewPrivateKey(rand.Reader)
		must(t, err)
		x.ends[i] = e
	}
	a, b := x.ends[0], x.ends[1]
	cable, err := lab.Cable(a.host, b.host, netlab.CableConfig{
		Queues: lanes, MTU: 1500, AddrsA: []netip.Prefix{a.outer}, AddrsB: []netip.Prefix{b.outer},
	})
	must(t, err)
	a.name, b.name = cable.DeviceA, cable.DeviceB
	x.start(a, b)
	x.start(b, a)
	return x
}

// start brings up one end's device, with the other end as its peer.
func (x *express) start(e, peer *end) {
	x.Helper()
	var inside tun.Device
	must(x.T, e.host.Do(func() (err error) {
		inside, err = tun.Open(tun.Config{Name: "rw0", Queues: lanes})
		return err
	}))
	began := time.Now()
	e.dev = device.New(device.Config{
		TUN: inside, Log: slog.New(slog.DiscardHandler),
		Clock:    engine.Clock(func() int64 { return haste * int64(time.Since(began)) }),
		OpenPort: func(o device.PortOptions) (underlay.Port, error) { return e.open(o) },
	})
	x.Cleanup(e.dev.Close)
	e.dev.Start()
	port, mode := uint16(listenPort), config.UnderlayXDP
	must(x.T, e.dev.Configure(config.Device{
		PrivateKey: &e.key, ListenPort: &port, Underlay: &mode,
		Peers: []config.Peer{{
			PublicKey:  peer.key.Public(),
			Endpoint:   &config.Endpoint{AddrPort: netip.AddrPortFrom(peer.outer.Addr(), listenPort)},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(peer.inner.Addr(), 32)}},
		}},
	}))
	must(x.T, e.host.SetUp("rw0", 0, e.inner))
}

// open is called by a goroutine of the device.
func (e *end) open(o device.PortOptions) (underlay.Port, error) {
	var p *auto.Port
	err := e.host.Do(func() error {
		u, err := udp.Open(udp.Config{Port: o.Port, Lanes: o.Lanes, Mark: o.Mark})
		if err != nil {
			return err
		}
		p, err = auto.Open(auto.Config{UDP: u, Mode: config.UnderlayXDP, Mark: o.Mark, Log: slog.New(slog.DiscardHandler)})
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

// handshake is when the present session began.
func (e *end) handshake() time.Time { return e.dev.Status().Peers[0].LastHandshake }

func (x *express) await(what string, done func() bool) {
	x.Helper()
	for late := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			x.Fatalf("%s: not within %v: %+v, %+v", what, patience, x.status(0), x.status(1))
		}
	}
}

func (x *express) status(i int) (s xdp.Status) {
	if p := x.ends[i].port.Load(); p != nil {
		s = p.Status()
	}
	return s
}

// settle waits until both ends send and receive by AF_XDP.
func (x *express) settle() {
	x.Helper()
	x.await("both ends go by AF_XDP", func() bool {
		return x.talk() && x.carries(0) && x.carries(1)
	})
}

func (x *express) carries(i int) bool {
	var sum xdp.LaneStatus
	s := x.status(i)
	for _, l := range s.Lanes {
		sum.Sent += l.Sent
		sum.Received += l.Received
	}
	return s.Ready() == lanes && sum.Sent > 0 && sum.Received > 0
}

// talk sends some bytes from each end to the other, and reports whether they came.
func (x *express) talk() bool {
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

// dial connects an end to the other by TCP, inside the tunnel.
func (x *express) dial(i int, limit time.Duration) (from, to net.Conn, err error) {
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

// stream sends numbers until over is closed, and then checks that all came.
func stream(from, to net.Conn, over <-chan struct{}) (n uint64, err error) {
	sent := make(chan error, 1)
	go func() { sent <- count(from, over) }()
	if n, err = check(to); err != nil {
		_ = from.Close() // nobody reads any more, and the sender would wait for that
		<-sent
		return n, err
	}
	return n, <-sent
}

const chunk = 64 << 10

// count writes the numbers from 0 on.
func count(to net.Conn, over <-chan struct{}) error {
	b := make([]byte, chunk)
	for next := uint64(0); ; {
		select {
		case <-over:
			return to.(*net.TCPConn).CloseWrite()
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

// check reads the numbers from 0 on, and returns how many there were.
func check(from net.Conn) (next uint64, err error) {
	b := make([]byte, chunk)
	for {
		n, err := io.ReadFull(from, b)
		for i := 0; i+8 <= n; i += 8 {
			if got := binary.LittleEndian.Uint64(b[i:]); got != next {
				return next, fmt.Errorf("the number %d in the place of %d", got, next)
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

// garbled changes the first byte of all that is read.
type garbled struct{ net.Conn }

func (g garbled) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if n > 0 {
		b[0] ^= 1
	}
	return n, err
}

// TestAStreamEndsAtAWrongNumber, though its sender waits for room that a reader would make.
func TestAStreamEndsAtAWrongNumber(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	from, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	to, err := ln.Accept()
	must(t, err)
	defer to.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := stream(from, garbled{to}, make(chan struct{}))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("no number was wrong")
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}

// TestTheFrameLedgerBalances has TCP go both ways over AF_XDP, one session after the other, and every frame come back.
func TestTheFrameLedgerBalances(t *testing.T) {
	if *way != "" && *way != "xdp" {
		t.Skipf("-underlay %s", *way)
	}
	requireXDP(t)
	x := newExpress(t)
	x.settle()
	over := make(chan struct{})
	var streams sync.WaitGroup
	var words atomic.Uint64
	var ends [4][2]net.Conn
	for i := range ends { // all before the first stream, which nothing would end if one failed
		from, to, err := x.dial(i%2, patience)
		must(t, err)
		ends[i] = [2]net.Conn{from, to}
	}
	for i, c := range ends {
		streams.Go(func() {
			defer c[0].Close()
			defer c[1].Close()
			n, err := stream(c[0], c[1], over)
			words.Add(n)
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	long := max(*duration, shortest)
	sessions := x.sessions(long)
	close(over)
	for _, c := range ends {
		late := time.Now().Add(patience)
		_ = errors.Join(c[0].SetDeadline(late), c[1].SetDeadline(late)) // those of a stream that failed are closed
	}
	streams.Wait()
	t.Logf("%d MiB, %d new sessions", words.Load()*8>>20, sessions)
	if least := max(int(long*haste/rekeyAfter/2), 1); sessions < least {
		t.Errorf("%d new sessions, want %d or more", sessions, least)
	}
	x.wantBalance()
}

// sessions lets the time pass, and returns how many new ones there were.
func (x *express) sessions(d time.Duration) (n int) {
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

// wantBalance asserts that every frame is back, that none was ever in two places, and that AF_XDP was never lost.
func (x *express) wantBalance() {
	x.Helper()
	for i, e := range x.ends {
		x.await("the frames are back", func() bool {
			s := x.status(i)
			for j := range s.Lanes {
				if !s.Lanes[j].Frames.Idle() {
					return false
				}
			}
			return true
		})
		s := x.status(i)
		for j := range s.Lanes {
			l := &s.Lanes[j]
			x.Logf("end %d, lane %d: %+v", i, j, *l)
			if !l.Balanced() || l.Err != nil || l.Fallbacks != 0 || l.Malformed != 0 {
				x.Errorf("end %d, lane %d is out of balance", i, j)
			}
		}
		if way := e.port.Load().Report().Way; way != config.UnderlayXDP {
			x.Errorf("end %d goes by %s", i, way)
		}
	}
}

func requireXDP(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW and a kernel with AF_XDP: %v", err)
	}
	must(t, unix.Close(fd))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
