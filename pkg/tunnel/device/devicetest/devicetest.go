// SPDX-License-Identifier: Apache-2.0

// Package devicetest makes devices for tests. A Host is a device between an in-memory TUN and an
// underlay. The underlay is an in-memory LAN or real UDP sockets on the loopback. It works in a
// synctest bubble too, real sockets excepted.
//
// Not for other programs: it may change without notice.
package devicetest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// Patience bounds every wait: far beyond what a loaded machine needs.
const Patience = 30 * time.Second

// ListenPort is the port of hosts on a LAN.
const ListenPort = 51820

// Options configures a Host. All fields are optional.
type Options struct {
	Lanes  int
	Depth  int          // of the TUN's queues, see tuntest.FakeConfig
	Drops  uint64       // of the TUN's queues before, see tuntest.FakeConfig
	Log    *slog.Logger // by default, a message at level error fails the test
	Stop   bool         // do not start the device
	NoIPv6 bool         // of NewUDP: do without, as on a host that has none
	Plan   device.Planner
	Clock  engine.Clock // by default, the device's
	Rand   io.Reader    // of the host's key too; crypto/rand when nil
	// Route and Loops are as in device.Config.
	Route func(*underlay.Endpoint, uint32) device.Route
	Loops func(*underlay.Endpoint, uint16, uint32) (bool, error)
	// OwnError is as in device.Config.
	OwnError func(*toobig.Message) bool
	// Resolve is as in device.Config.
	Resolve func(ctx context.Context, name string, mark uint32) (device.Resolved, error)
	// Recall is as in device.Config.
	Recall func(own, peer noise.PublicKey) (device.SessionEndpoint, bool)
	// WrapPort, if set, may put something between the device and its port.
	WrapPort func(underlay.Port) underlay.Port
}

// Host is a device with its number N, from 1 to 254, which is part of its addresses.
type Host struct {
	*device.Device
	N   byte
	TUN *tuntest.Fake
	Key noise.PrivateKey

	tb      testing.TB
	outside [2]netip.Addr // IPv4 and IPv6
	watches sync.WaitGroup
}

// LAN is an in-memory network.
type LAN struct{ *underlaytest.Network }

// NewLAN returns a LAN without hosts. See underlaytest.NewNetwork for filter.
func NewLAN(filter underlaytest.Filter) LAN { return LAN{underlaytest.NewNetwork(filter)} }

// Addresses are the IPv4 and the IPv6 address of host n.
func Addresses(n byte) (v4, v6 netip.Addr) {
	a := netip.MustParseAddr("2001:db8::").As16()
	a[15] = n
	return netip.AddrFrom4([4]byte{192, 0, 2, n}), netip.AddrFrom16(a)
}

// Inner are the IPv4 and the IPv6 address of host n inside the tunnel.
func Inner(n byte) (v4, v6 netip.Addr) {
	a := netip.MustParseAddr("fd00::").As16()
	a[15] = n
	return netip.AddrFrom4([4]byte{10, 0, 0, n}), netip.AddrFrom16(a)
}

// site is where a host stands.
type site struct {
	outside [2]netip.Addr // IPv4 and IPv6
	port    uint16        // to listen at
	open    func(device.PortOptions) (underlay.Port, error)
}

// Host adds host n, which is up and closed when the test ends.
func (l LAN) Host(tb testing.TB, n byte, o Options) *Host {
	tb.Helper()
	v4, v6 := Addresses(n)
	return start(tb, n, o, site{[2]netip.Addr{v4, v6}, ListenPort, func(p device.PortOptions) (underlay.Port, error) {
		f, err := l.Open(v4, v6, p.Port, p.Lanes)
		if err != nil {
			return nil, err
		}
		return f, f.SetFragments(p.Fragments)
	}})
}

// NewUDP returns a host on real sockets, at a port of the kernel's choice on the loopback.
func NewUDP(tb testing.TB, n byte, o Options) *Host {
	tb.Helper()
	loopback := [2]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	return start(tb, n, o, site{loopback, 0, func(p device.PortOptions) (underlay.Port, error) {
		u, err := udp.Open(udp.Config{Port: p.Port, Lanes: p.Lanes, Mark: p.Mark, NoIPv6: o.NoIPv6})
		if err != nil {
			return nil, err
		}
		return u, nil
	}})
}

// Pair returns two hosts of a new LAN without loss that are each other's peers.
func Pair(tb testing.TB, o Options) (a, b *Host) {
	tb.Helper()
	lan := NewLAN(nil)
	a, b = lan.Host(tb, 1, o), lan.Host(tb, 2, o)
	Connect(a, b)
	return a, b
}

// Connect makes two hosts each other's peers over IPv4.
func Connect(a, b *Host) {
	a.Apply(config.Device{Peers: []config.Peer{b.AsPeer(false)}})
	b.Apply(config.Device{Peers: []config.Peer{a.AsPeer(false)}})
}

func start(tb testing.TB, n byte, o Options, at site) *Host {
	tb.Helper()
	h := &Host{N: n, tb: tb, outside: at.outside}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	key, err := noise.NewPrivateKey(o.Rand)
	if err != nil {
		tb.Fatal(err)
	}
	if o.Log == nil {
		o.Log = slog.New(&errorsFail{Handler: slog.DiscardHandler, tb: tb})
	}
	h.Key = key
	h.TUN = tuntest.NewFake(tuntest.FakeConfig{Queues: o.Lanes, Depth: o.Depth, QueueDrops: o.Drops, Features: tun.Features{TSO: true, USO: true}})
	h.Device = device.New(device.Config{
		TUN: h.TUN, Log: o.Log, Plan: o.Plan, Clock: o.Clock, Rand: o.Rand, Route: o.Route, Loops: o.Loops, OwnError: o.OwnError, Resolve: o.Resolve, Recall: o.Recall, OpenPort: wrapped(at.open, o.WrapPort),
	})
	tb.Cleanup(h.close)
	h.Apply(config.Device{PrivateKey: &h.Key, ListenPort: &at.port})
	if !o.Stop {
		h.Start()
		h.Await("the interface is up", h.Up)
	}
	return h
}

func wrapped(
	open func(device.PortOptions) (underlay.Port, error), wrap func(underlay.Port) underlay.Port,
) func(device.PortOptions) (underlay.Port, error) {
	if wrap == nil {
		return open
	}
	return func(p device.PortOptions) (underlay.Port, error) {
		port, err := open(p)
		if err != nil {
			return nil, err
		}
		return wrap(port), nil
	}
}

// errorsFail is a slog.Handler that fails the test on errors.
type errorsFail struct {
	slog.Handler
	tb testing.TB
}

// Enabled implements slog.Handler. All levels are enabled, so that all arguments are evaluated.
func (*errorsFail) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (f *errorsFail) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		f.tb.Errorf("logged: %s", r.Message)
		r.Attrs(func(a slog.Attr) bool {
			f.tb.Logf("  %v", a)
			return true
		})
	}
	return nil
}

// Apply configures the device, which must succeed.
func (h *Host) Apply(c config.Device) {
	h.tb.Helper()
	if err := h.Configure(c); err != nil {
		h.tb.Fatal(err)
	}
}

// Public is the host's public key.
func (h *Host) Public() noise.PublicKey { return h.Key.Public() }

// Outside is where the host listens.
func (h *Host) Outside(v6 bool) netip.AddrPort {
	i := 0
	if v6 {
		i = 1
	}
	return netip.AddrPortFrom(h.outside[i], h.Status().ListenPort)
}

// AsPeer returns the peer configuration for the host.
func (h *Host) AsPeer(v6 bool) config.Peer {
	v4Inner, v6Inner := Inner(h.N)
	return config.Peer{
		PublicKey: h.Public(),
		Endpoint:  &config.Endpoint{AddrPort: h.Outside(v6)},
		AllowedIPs: []config.AllowedIP{
			{Prefix: netip.PrefixFrom(v4Inner, 32)}, {Prefix: netip.PrefixFrom(v6Inner, 128)},
		},
	}
}

// To returns the ends of an inner flow to another host; port tells flows apart.
func (h *Host) To(other *Host, port uint16, v6 bool) flow.Ends { return Ends(h.N, other.N, port, v6) }

// Ends returns the ends of an inner flow from one host to another.
func Ends(from, to byte, port uint16, v6 bool) flow.Ends {
	src4, src6 := Inner(from)
	dst4, dst6 := Inner(to)
	if v6 {
		return flow.Ends{Src: netip.AddrPortFrom(src6, port), Dst: netip.AddrPortFrom(dst6, 7)}
	}
	return flow.Ends{Src: netip.AddrPortFrom(src4, port), Dst: netip.AddrPortFrom(dst4, 7)}
}

// Send sends trains into the tunnel, on queue 0.
func (h *Host) Send(trains ...[]byte) {
	h.tb.Helper()
	for _, e := range trains {
		h.SendOn(0, e)
	}
}

// SendOn sends a train on the given queue. It waits while the queue is full.
func (h *Host) SendOn(queue int, train []byte) {
	h.tb.Helper()
	var err error
	h.Await("the queue accepts a train", func() bool {
		err = h.TUN.Inject(queue, train)
		return err == nil
	})
}

// Next returns the packets of the next train from queue 0.
func (h *Host) Next() [][]byte {
	h.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	e, err := h.TUN.Receive(ctx, 0)
	if err != nil {
		h.tb.Fatalf("host %d gets nothing: %v", h.N, err)
	}
	packets, err := flow.Packets(e)
	if err != nil {
		h.tb.Fatal(err)
	}
	return packets
}

// close closes the device, and waits until no function that watches it can report anything after the end of the test.
func (h *Host) close() {
	h.Close()
	h.watches.Wait()
}

// Watch calls take with each train that the host receives, from one goroutine per queue, until the device is closed.
func (h *Host) Watch(take func(queue int, train []byte)) {
	for q := range h.TUN.Queues() {
		h.watches.Go(func() {
			for {
				e, err := h.TUN.Receive(context.Background(), q)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				take(q, e)
			}
		})
	}
}

// Up tells whether the device has a port.
func (h *Host) Up() bool { return h.Stats().(device.Stats).Up }

// Drops is the number of packets that the device dropped for a reason, everywhere.
func (h *Host) Drops(reason drop.Reason) uint64 { return h.AllDrops()[reason.String()] }

// AllDrops are all that the device dropped, by reason.
func (h *Host) AllDrops() map[string]uint64 {
	s := h.Stats().(device.Stats)
	all := s.Drops
	for _, l := range s.Lanes {
		for reason, n := range l.Drops {
			all[reason] += n
		}
	}
	return all
}

// PeerStatus is the status of another host as this one's peer.
func (h *Host) PeerStatus(other *Host) config.PeerStatus {
	h.tb.Helper()
	for _, p := range h.Status().Peers {
		if p.PublicKey == other.Public() {
			return p
		}
	}
	h.tb.Fatalf("host %d has no peer %d", h.N, other.N)
	return config.PeerStatus{}
}

// Await waits until cond holds.
func (h *Host) Await(what string, cond func() bool) {
	h.tb.Helper()
	expect.Eventually(h.tb, what, cond)
}
