// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	engines "github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/expect"
)

// The addresses inside a tunnel.
var (
	inner4 = [2]netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("10.0.0.2/24")}
	inner6 = [2]netip.Prefix{netip.MustParsePrefix("fd00::1/64"), netip.MustParsePrefix("fd00::2/64")}
)

// tunnel is an engine at each end of a cable. One or both use AF_XDP.
type tunnel struct {
	*pair
	keys    [2]noise.PrivateKey
	devices [2]*engines.Device
	ports   [2]*Port          // nil at an end with UDP alone
	choose  [2]func() Binding // replaces the tunnelMode, if set
	workers [2]*workpool.Pool
	wrap    [2]func(*Port) underlay.Port // wraps an AF_XDP port; nil: no wrapper
}

// tunnelMode is the mode in which the ends of a tunnel send and receive.
type tunnelMode struct {
	name     string
	viaXDP   [2]bool
	mode     xsk.Mode
	ipv6     bool
	noTrains bool // the UDP sockets have neither GSO nor GRO
}

var tunnelModes = []tunnelMode{
	{"AF_XDP at both ends", [2]bool{true, true}, xsk.Copy, false, false},
	{"AF_XDP at both ends over IPv6", [2]bool{true, true}, xsk.Copy, true, false},
	{"AF_XDP at one end", [2]bool{true, false}, xsk.Copy, false, false},
	{"AF_XDP at one end over IPv6", [2]bool{true, false}, xsk.Copy, true, false},
}

const tunnelPort = 51820

func newTunnel(t testing.TB, m tunnelMode, lanes int) *tunnel {
	l := &tunnel{pair: newPair(t, lanes)}
	l.startBoth(m)
	return l
}

func (l *tunnel) startBoth(m tunnelMode) {
	l.Helper()
	for end := range l.keys {
		var err error
		l.keys[end], err = noise.NewPrivateKey(rand.Reader)
		expect.NoError(l.TB, err)
	}
	for end := range l.devices {
		l.start(end, m)
	}
}

func (l *tunnel) start(end int, m tunnelMode) {
	l.Helper()
	var inside tun.Device
	expect.NoError(l.TB, l.hosts[end].Do(func() (err error) {
		inside, err = tun.Open(tun.Config{Name: "rw0", Queues: l.queue})
		return err
	}))
	opened := make(chan struct{})
	l.devices[end] = engines.New(engines.Config{
		TUN: inside, Log: slog.New(slog.DiscardHandler), Pool: l.workers[end],
		OpenPort: func(o engines.PortOptions) (underlay.Port, error) {
			defer close(opened)
			p := l.openPort(end, o, m)
			if wrap := l.wrap[end]; wrap != nil {
				p = wrap(l.ports[end])
			}
			return p, nil
		},
	})
	l.Cleanup(l.devices[end].Close)
	l.devices[end].Start()
	port, peer := uint16(tunnelPort), 1-end
	outer := addrs4[peer].Addr()
	if m.ipv6 {
		outer = addrs6[peer].Addr()
	}
	expect.NoError(l.TB, l.devices[end].Configure(config.Device{
		PrivateKey: &l.keys[end], ListenPort: &port,
		Peers: []config.Peer{{
			PublicKey: l.keys[peer].Public(),
			Endpoint:  &config.Endpoint{AddrPort: netip.AddrPortFrom(outer, tunnelPort)},
			AllowedIPs: []config.AllowedIP{
				{Prefix: netip.PrefixFrom(inner4[peer].Addr(), 32)}, {Prefix: netip.PrefixFrom(inner6[peer].Addr(), 128)},
			},
		}},
	}))
	expect.NoError(l.TB, l.hosts[end].SetUp("rw0", 0, inner4[end], inner6[end]))
	<-opened
}

// openPort opens the port. A goroutine of the device calls it once.
func (l *tunnel) openPort(end int, o engines.PortOptions, m tunnelMode) underlay.Port {
	slow := udp.Config{Port: o.Port, Lanes: o.Lanes, Mark: o.Mark, NoGRO: m.noTrains, NoGSO: m.noTrains}
	if !m.viaXDP[end] {
		return l.openUDP(end, slow)
	}
	if choose := l.choose[end]; choose != nil {
		u := l.openUDP(end, slow)
		expect.NoError(l.TB, l.hosts[end].Do(func() (err error) {
			l.ports[end], err = Open(Config{UDP: u, Choose: choose, Mark: o.Mark})
			return err
		}))
		return l.ports[end]
	}
	p := l.classify(end, Config{Binding: Binding{Mode: m.mode}, Mark: o.Mark}, slow)
	l.ports[end] = p
	return p
}

// dial connects the ends by TCP, inside the tunnel.
func (l *tunnel) dial(ipv6 bool) (from, to net.Conn) {
	l.Helper()
	at := inner4[1].Addr()
	if ipv6 {
		at = inner6[1].Addr()
	}
	var listener net.Listener
	expect.NoError(l.TB, l.hosts[1].Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		return err
	}))
	defer listener.Close()
	expect.NoError(l.TB, l.hosts[0].Do(func() (err error) {
		from, err = net.DialTimeout("tcp", listener.Addr().String(), deadline)
		return err
	}))
	to, err := listener.Accept()
	expect.NoError(l.TB, err)
	for _, c := range []net.Conn{from, to} {
		l.Cleanup(func() { c.Close() })
		expect.NoError(l.TB, c.SetDeadline(time.Now().Add(2*deadline)))
	}
	return from, to
}

// transfer sends so many bytes, and checks that they arrive unchanged.
func transfer(from, to net.Conn, bytesEach, times int) error {
	end := time.Now().Add(2 * deadline)
	if err := errors.Join(from.SetDeadline(end), to.SetDeadline(end)); err != nil {
		return err
	}
	chunk := make([]byte, bytesEach)
	_, _ = rand.Read(chunk)
	sent := make(chan error, 1)
	go func() {
		var err error
		for range times {
			_, e := from.Write(chunk)
			err = errors.Join(err, e)
		}
		sent <- err
	}()
	got := sha256.New()
	_, err := io.CopyN(got, to, int64(bytesEach)*int64(times))
	want := sha256.New()
	for range times {
		want.Write(chunk)
	}
	if err == nil && !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		err = errors.New("other bytes arrived than were sent")
	}
	return errors.Join(err, <-sent)
}

// ping expects a reply to an ICMP echo request with so many bytes of data.
func (l *tunnel) ping(size int) {
	l.Helper()
	if err := l.echo(size, deadline); err != nil {
		l.Fatalf("a ping of %d bytes: %v", size, err)
	}
}

// echo sends an ICMP echo request with so many bytes of data, and waits for the reply of the kernel at the other end.
func (l *tunnel) echo(size int, timeout time.Duration) error {
	l.Helper()
	var conn *net.IPConn
	expect.NoError(l.TB, l.hosts[0].Do(func() (err error) {
		conn, err = net.DialIP("ip4:icmp", nil, &net.IPAddr{IP: inner4[1].Addr().AsSlice()})
		return err
	}))
	defer conn.Close()
	expect.NoError(l.TB, conn.SetDeadline(time.Now().Add(timeout)))
	request := make([]byte, 8+size) // RFC 792
	request[0] = 8
	binary.BigEndian.PutUint16(request[4:], uint16(size))
	_, _ = rand.Read(request[8:])
	binary.BigEndian.PutUint16(request[2:], ^packet.Fold(packet.Sum(request, 0)))
	if _, err := conn.Write(request); err != nil {
		return err
	}
	for answer := make([]byte, 65535); ; {
		n, _, err := conn.ReadFrom(answer) // Read would include the IP header
		if err != nil {
			return err
		}
		if n == len(request) && answer[0] == 0 && bytes.Equal(answer[4:n], request[4:]) {
			return nil
		}
	}
}

// awaitXDP waits until data uses AF_XDP where it can. It sends data meanwhile, and does not expect it to arrive: packets in the queues of a
// socket that closes are lost.
func (l *tunnel) awaitXDP() {
	l.Helper()
	for _, p := range l.ports {
		if p != nil {
			before := l.carried(p)
			expect.EventuallyNoError(l.TB, "a ping and its reply to arrive, and data to leave through AF_XDP", func() error {
				err := l.echo(56, time.Second)
				if err == nil && l.carried(p).Sent == before.Sent {
					err = errors.New("no data left through AF_XDP")
				}
				return err
			})
		}
	}
}

// carried sums the counters of a port's lanes.
func (l *tunnel) carried(p *Port) (sum LaneStatus) {
	for _, s := range p.Status().Lanes {
		sum.Sent += s.Sent
		sum.Received += s.Received
		sum.Slow += s.Slow
		sum.Lost += s.Lost
		sum.Malformed += s.Malformed
		sum.Fallbacks += s.Fallbacks
	}
	return sum
}

// TestTunnelCarriesTCPAndPings tests both directions, also with a UDP port at the other end.
func TestTunnelCarriesTCPAndPings(t *testing.T) {
	for _, m := range tunnelModes {
		t.Run(m.name, func(t *testing.T) {
			l := newTunnel(t, m, 2)
			l.awaitXDP()
			for _, size := range []int{0, 1, 56, 1391, 1392, 1393, 1472, 8000} { // 1392 fills the tunnel's MTU
				l.ping(size)
			}
			var before [2]LaneStatus
			for end, p := range l.ports {
				if p != nil {
					before[end] = l.carried(p)
				}
			}
			for _, ipv6 := range []bool{false, true} {
				from, to := l.dial(ipv6)
				expect.NoError(t, transfer(from, to, 1<<20, 4))
				expect.NoError(t, transfer(to, from, 1<<20, 4))
			}
			for end, p := range l.ports {
				if p == nil {
					continue
				}
				after := l.carried(p)
				if sent, slow := after.Sent-before[end].Sent, after.Slow-before[end].Slow; sent < 4000 || slow > sent/10 {
					t.Errorf("end %d: %d datagrams sent through AF_XDP, %d runs through UDP", end, sent, slow)
				}
				if after.Received-before[end].Received < 4000 {
					t.Errorf("end %d: %d datagrams received through AF_XDP", end, after.Received-before[end].Received)
				}
				if after.Malformed != 0 {
					t.Errorf("end %d: got %+v, want Malformed 0", end, after)
				}
			}
			l.close()
		})
	}
}

// close stops both ends and checks that every frame is back.
func (l *tunnel) close() {
	l.Helper()
	for _, d := range l.devices {
		d.Close()
	}
	for end, p := range l.ports {
		if p == nil {
			continue
		}
		for i, s := range p.Status().Lanes {
			if s.Socket.FrameOwnershipErrors+s.Socket.Rejected+s.Socket.RxInvalid+s.Socket.TxInvalid != 0 {
				l.Errorf("end %d, lane %d: %+v", end, i, s.Socket)
			}
		}
	}
}

// TestTransferSurvivesNetworkChanges: during a transfer the link goes down and up, the neighbour is deleted, the route
// changes and is restored, and sockets fail.
func TestTransferSurvivesNetworkChanges(t *testing.T) {
	l := newTunnel(t, tunnelModes[0], 2)
	l.awaitXDP()
	from, to := l.dial(false)
	for round := range 2 {
		for name, change := range map[string]func() error{
			"link":      l.flap,
			"neighbour": l.forget,
			"socket":    l.fail,
			"route":     l.withoutRoute,
		} {
			done := make(chan error, 1)
			go func() { done <- transfer(from, to, 1<<20, 8) }()
			expect.NoError(t, l.hosts[0].Do(change))
			if err := <-done; err != nil {
				t.Fatalf("round %d, %s: got error %v; %+v, want no error", round, name, err, l.ports[0].Status())
			}
			l.awaitXDP()
		}
	}
	if n := l.carried(l.ports[0]).Fallbacks; n < 4 {
		t.Errorf("got %d fallbacks, want at least 4", n)
	}
	l.close()
}

func (l *tunnel) flap() error {
	link, err := netlink.LinkByName(l.devs[0])
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetUp(link))
}

func (l *tunnel) forget() error {
	known := netlink.Neigh{Family: unix.AF_INET, IP: addrs4[1].Addr().AsSlice()}
	link, err := netlink.LinkByName(l.devs[0])
	if err != nil {
		return err
	}
	known.LinkIndex = link.Attrs().Index
	if err := netlink.NeighDel(&known); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forgetting %s: %w", known.IP, err)
	}
	return nil
}

// fail makes the sockets of one end report that their queue is gone.
func (l *tunnel) fail() error {
	for _, lane := range l.ports[0].lanes {
		if c := lane.laneSocket.Load(); c != nil {
			c.recordError(xsk.ErrQueueGone)
		}
	}
	notify(l.ports[0].wake)
	return nil
}

// withoutRoute removes the route for a while.
func (l *tunnel) withoutRoute() error {
	route := netlink.Route{
		Type: unix.RTN_UNREACHABLE, Dst: &net.IPNet{IP: addrs4[1].Addr().AsSlice(), Mask: net.CIDRMask(32, 32)},
	}
	if err := netlink.RouteAdd(&route); err != nil {
		return err
	}
	to := target{dst: addrs4[1].Addr()}
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if l.ports[0].table.present(to).reason == NoRoute {
			break
		}
	}
	return netlink.RouteDel(&route)
}
