// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// paths is a network with a path of its own for each source: with a delay, a limit of its rate as clouds have it, and loss.
type paths struct {
	net   *underlaytest.Network
	delay func(port uint16) time.Duration
	tap   func(d underlaytest.Routed) // called for each datagram; nil for none
	rate  int                         // bytes per second and source, 0 for no limit
	lose  func(large bool) bool       // nil for no loss; large are messages of full trains

	carriers sync.WaitGroup

	mu    sync.Mutex
	lines map[netip.AddrPort]*line
	sent  map[netip.AddrPort]int // large messages
	lost  int                    // of these
}

// line is what is on its way from one source.
type line struct {
	queue chan dueDatagram
	free  time.Time // when the path has sent all before
}

type dueDatagram struct {
	underlaytest.Routed
	at time.Time
}

const largeMessage = 1000

// newPaths returns two hosts whose messages take these paths, and which spray over the given number of ports.
func newPaths(t *testing.T, n *paths, spray config.Spray, o devicetest.Options) (a, b *devicetest.Host, c *flow.Checker) {
	t.Helper()
	n.net, n.lines, n.sent = underlaytest.NewRoutedNetwork(n.route), map[netip.AddrPort]*line{}, map[netip.AddrPort]int{}
	lan := devicetest.LAN{Network: n.net}
	a, b = lan.Host(t, 1, o), lan.Host(t, 2, o)
	devicetest.Connect(a, b)
	for _, h := range []*devicetest.Host{a, b} {
		h.Apply(config.Device{Settings: config.Settings{Spray: &spray}})
	}
	t.Cleanup(n.close)
	c = checked(t, b, n.lose != nil || n.rate > 0)
	checked(t, a, true)
	there, back := flow.Flow{Ends: a.To(b, 2999, false), ID: 1000}, flow.Flow{Ends: b.To(a, 2999, false), ID: 1000}
	for range 8 {
		a.Send(there.Next(100))
		b.Send(back.Next(100))
		time.Sleep(time.Second)
	}
	if s := a.PeerStatus(b).Spread; !s.Active || s.Sprays != spray.Ports() {
		t.Fatalf("host 1: %+v", s)
	}
	return a, b, c
}

func TestSprayWithoutSpreadIsLogged(t *testing.T) {
	off, auto, spray, none := config.SpreadOff, config.SpreadAuto, config.SprayAuto, config.SprayOff
	for _, tc := range []struct {
		changes []config.Device
		want    int
	}{
		{[]config.Device{{Settings: config.Settings{Spread: &off, Spray: &spray}}, {Settings: config.Settings{Spread: &off}}, {Settings: config.Settings{SpreadPorts: &spread.Ports{First: 7000, Last: 7003}}}}, 1},
		{[]config.Device{{Settings: config.Settings{Spread: &off}}, {Settings: config.Settings{Spray: &spray}}, {Settings: config.Settings{Spray: &none}}}, 1},
		{[]config.Device{{Settings: config.Settings{Spray: &spray}}, {Settings: config.Settings{Spread: &off}}, {Settings: config.Settings{Spread: &auto}}, {Settings: config.Settings{Spread: &off}}}, 2},
		{[]config.Device{{Settings: config.Settings{Spray: &spray}}, {Settings: config.Settings{Spread: &off, Spray: &none}}, {Settings: config.Settings{Spread: &auto, Spray: &spray}}}, 0},
	} {
		var log lockedText
		h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		for _, change := range tc.changes {
			h.Apply(change)
		}
		if got := strings.Count(log.String(), `level=WARN msg="spray has no effect while spread is off"`); got != tc.want {
			t.Errorf("%d warnings, want %d:\n%s", got, tc.want, log.String())
		}
	}
}

func (n *paths) route(d underlaytest.Routed) {
	if n.tap != nil {
		n.tap(d)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lines == nil {
		return
	}
	if large := len(d.Payload) > largeMessage; large || n.lose != nil {
		n.sent[d.From]++
		if n.lose != nil && n.lose(large) {
			n.lost++
			return
		}
	}
	l := n.lines[d.From]
	if l == nil {
		l = &line{queue: make(chan dueDatagram, 1<<14)}
		n.lines[d.From] = l
		n.carriers.Go(func() { n.carry(l.queue) })
	}
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	if n.rate > 0 {
		l.free = l.free.Add(time.Duration(len(d.Payload)) * time.Second / time.Duration(n.rate))
		if l.free.Sub(now) > 2*time.Millisecond { // the policer's bucket is empty
			l.free = l.free.Add(-time.Duration(len(d.Payload)) * time.Second / time.Duration(n.rate))
			return
		}
	}
	at := l.free
	if n.delay != nil {
		at = at.Add(n.delay(d.From.Port()))
	}
	d.Payload = append([]byte(nil), d.Payload...)
	l.queue <- dueDatagram{d, at}
}

func (n *paths) carry(queue chan dueDatagram) {
	for d := range queue {
		time.Sleep(time.Until(d.at))
		n.net.Deliver(d.Routed)
	}
}

func (n *paths) close() {
	n.mu.Lock()
	for _, l := range n.lines {
		close(l.queue)
	}
	n.lines = nil
	n.mu.Unlock()
	n.carriers.Wait()
}

// portsOf returns the number of ports from which a host has sent trains since the last call, without the listen port.
func (n *paths) portsOf(h *devicetest.Host) (ports int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v4, _ := devicetest.Addresses(h.N)
	for from, messages := range n.sent { // a path MTU probe may be large, too
		if messages > 45 && from.Addr() == v4 && from.Port() != devicetest.ListenPort {
			ports++
		}
	}
	clear(n.sent)
	return ports
}

// elephant sends one flow at 210 MB/s for some time.
func elephant(from *devicetest.Host, f *flow.Flow, duration time.Duration) {
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(300 * time.Microsecond) {
		from.Send(f.Train(45, 1380))
	}
}

// checked checks what arrives at a host.
func checked(t *testing.T, h *devicetest.Host, lossy bool) *flow.Checker {
	c := &flow.Checker{Lossy: lossy}
	h.Watch(func(_ int, train []byte) {
		if err := c.Take(train); err != nil {
			t.Error(err)
		}
	})
	return c
}

// orders sums the counters of received sprayed flows.
func orders(h *devicetest.Host) (sum engine.OrderStats) {
	for _, l := range h.Stats().(device.Stats).Lanes {
		sum.Add(&l.RxOrder)
	}
	return sum
}

// byPort is a delay that differs by port, up to 3 ms.
func byPort(port uint16) time.Duration { return time.Duration(port%4) * time.Millisecond }

func TestElephantIsSprayedInOrder(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			n := &paths{delay: byPort}
			a, b, c := newPaths(t, n, 4, devicetest.Options{Lanes: lanes})
			f := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}
			n.portsOf(a)
			elephant(a, f, 300*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			if got := c.Seen(1); got != f.Sent() {
				t.Errorf("%d lanes: %d of %d packets arrived", lanes, got, f.Sent())
			}
			if ports := n.portsOf(a); ports != 4 {
				t.Errorf("%d lanes: sprayed over %d ports, want 4", lanes, ports)
			}
			if o := orders(b); o.Late+o.Skipped+o.Unordered != 0 || lanes == 1 && o.Waited == 0 {
				t.Errorf("%d lanes: %+v", lanes, o)
			}
		})
	}
}

func TestLostMessagesDelaySprayedFlowBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		n := &paths{delay: byPort, lose: func(large bool) bool { return large && rng.IntN(500) == 0 }}
		a, b, c := newPaths(t, n, 4, devicetest.Options{})
		f := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}
		elephant(a, f, 1500*time.Millisecond)
		longest, last := time.Duration(0), c.Total()
		began := time.Now()
		for range 4000 {
			a.Send(f.Train(45, 1380))
			time.Sleep(100 * time.Microsecond)
			if now := c.Total(); now != last {
				longest, last, began = max(longest, time.Since(began)), now, time.Now()
			}
		}
		time.Sleep(100 * time.Millisecond)
		n.mu.Lock()
		lost := n.lost
		n.mu.Unlock() // not later: a worker that sends has its peer's lock, which orders needs

		if missing := int(f.Sent()) - int(c.Total()-8); missing > lost || missing < lost-10 { // some were path MTU probes
			t.Errorf("%d packets are missing, %d messages were lost, drops: %v, %v", missing, lost, a.AllDrops(), b.AllDrops())
		}
		if o := orders(b); o.Late != 0 || o.Skipped == 0 || lost < 100 {
			t.Errorf("%+v, %d messages were lost", o, lost)
		}
		if longest > 6*time.Millisecond { // the paths differ by 3 ms, and half of that again, and the polling
			t.Errorf("the flow stood still for %v", longest)
		}
	})
}

// TestReportsAboutSprayedMessagesAreBelieved quotes a message of a stream.
func TestReportsAboutSprayedMessagesAreBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var m *toobig.Message
		n := &paths{delay: byPort}
		n.tap = func(d underlaytest.Routed) {
			if len(d.Payload) > largeMessage && session.IsStream(binary.LittleEndian.Uint64(d.Payload[8:])) {
				mu.Lock()
				defer mu.Unlock()
				m = &toobig.Message{MTU: 1400, Size: 1480, From: d.From, To: d.To, Payload: slices.Clone(d.Payload[:wire.DataHeaderLen])}
			}
		}
		a, b, _ := newPaths(t, n, 4, devicetest.Options{})
		f := flow.Flow{Ends: a.To(b, 2000, false), ID: 1}
		elephant(a, &f, 500*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		if m == nil {
			t.Fatal("nothing was sprayed")
		}
		a.OnTooBig(m)
		if got := a.Stats().(device.Stats).PathMTUErrors; got.Believed != 1 {
			t.Errorf("got %+v, want the report believed", got)
		}
	})
}

func TestSmallFlowsAreNotSprayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &paths{delay: byPort}
		a, b, _ := newPaths(t, n, 4, devicetest.Options{})
		f, g := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}, &flow.Flow{Ends: a.To(b, 3001, false), ID: 2}
		n.portsOf(a)
		for range 600 { // 105 MB/s each
			a.Send(f.Train(45, 1380), g.Train(45, 1380))
			time.Sleep(600 * time.Microsecond)
		}
		if ports := n.portsOf(a); ports > 2 {
			t.Errorf("2 flows left from %d ports", ports)
		}
	})
}

func TestPortLimitDoesNotLimitSprayedFlow(t *testing.T) {
	arrived := map[config.Spray]uint64{}
	for _, spray := range []config.Spray{config.SprayOff, 4} {
		synctest.Test(t, func(t *testing.T) {
			n := &paths{delay: byPort, rate: 60_000_000}
			a, b, c := newPaths(t, n, spray, devicetest.Options{})
			f := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}
			elephant(a, f, 200*time.Millisecond)
			before := c.Total()
			elephant(a, f, 300*time.Millisecond)
			arrived[spray] = c.Total() - before
		})
	}
	if one, four := arrived[config.SprayOff], arrived[4]; four < 3*one {
		t.Errorf("%d packets arrived from one port, and %d from four", one, four)
	}
}

// TestSprayEndsInOrder ends spraying at either end, and by a new session, while the flow goes on.
func TestSprayEndsInOrder(t *testing.T) {
	off, on := config.SprayOff, config.Spray(4)
	for name, end := range map[string]func(a, b *devicetest.Host){
		"off at the sender":   func(a, _ *devicetest.Host) { a.Apply(config.Device{Settings: config.Settings{Spray: &off}}) },
		"off at the receiver": func(_, b *devicetest.Host) { b.Apply(config.Device{Settings: config.Settings{Spray: &off}}) },
		"other ports": func(a, _ *devicetest.Host) {
			three := config.Spray(3)
			a.Apply(config.Device{Settings: config.Settings{Spray: &three}})
		},
		"a new session": func(a, b *devicetest.Host) { a.PeerOf(b.Public()).Initiate() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &paths{delay: byPort}
				a, b, c := newPaths(t, n, on, devicetest.Options{})
				f := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}
				elephant(a, f, 200*time.Millisecond)
				if ports := n.portsOf(a); ports != 4 {
					t.Errorf("was sprayed over %d ports", ports)
				}
				end(a, b)
				elephant(a, f, 150*time.Millisecond)
				n.portsOf(a)
				elephant(a, f, 50*time.Millisecond)
				time.Sleep(100 * time.Millisecond)
				if got := c.Seen(1); got != f.Sent() {
					t.Errorf("%d of %d packets arrived", got, f.Sent())
				}
				want := map[string]int{"other ports": 3, "a new session": 4}[name]
				if ports := n.portsOf(a); ports != max(want, 1) {
					t.Errorf("leaves from %d ports, want %d", ports, max(want, 1))
				}
			})
		})
	}
}

// TestFlowIsNotSprayedBeyondStreamBudget: sessions of other peers have all memory for replay windows at the receiver. The flow goes on in order.
func TestFlowIsNotSprayedBeyondStreamBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &paths{delay: byPort}
		a, b, c := newPaths(t, n, 4, devicetest.Options{})
		f := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}
		elephant(a, f, 200*time.Millisecond)
		release := b.TakeStreamBudget()
		refused := b.Stats().(device.Stats).SprayRefused
		for _, want := range []int{1, 4} {
			a.PeerOf(b.Public()).Initiate()
			elephant(a, f, 150*time.Millisecond) // the stream ends in its session
			time.Sleep(10 * time.Second)
			elephant(a, f, 200*time.Millisecond)
			n.portsOf(a)
			elephant(a, f, 50*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			if ports, got := n.portsOf(a), c.Seen(1); ports != want || got != f.Sent() {
				t.Errorf("%d of %d packets arrived, from %d ports, want %d", got, f.Sent(), ports, want)
			}
			if n := b.Stats().(device.Stats).SprayRefused - refused; n != 1 {
				t.Errorf("%d sessions of the peer were refused, want 1", n)
			}
			release()
		}
	})
}

// TestPortsOutsideRangeOfPeerAreNotSprayed: the peer selects their lanes by a hash.
func TestPortsOutsideRangeOfPeerAreNotSprayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &paths{delay: byPort}
		a, b, c := newPaths(t, n, 4, devicetest.Options{Lanes: 4})
		a.Apply(config.Device{Settings: config.Settings{SpreadPorts: &spread.Ports{First: 62500, Last: 62600}}})
		time.Sleep(10 * time.Second)
		f := &flow.Flow{Ends: a.To(b, 3000, false), ID: 1}
		n.portsOf(a)
		elephant(a, f, 300*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		if ports, got := n.portsOf(a), c.Seen(1); ports != 1 || got != f.Sent() {
			t.Errorf("%d of %d packets arrived, from %d ports", got, f.Sent(), ports)
		}
		if s := a.PeerStatus(b).Spread; !s.Active || s.Sprays != 0 {
			t.Errorf("spread: %+v", s)
		}
	})
}

// TestFixedRangeEndsSpray: the kernel goes on to select the lanes of other ports than the configured ones.
func TestFixedRangeEndsSpray(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := newPaths(t, &paths{}, 4, devicetest.Options{
			Lanes: 4, WrapPort: func(p underlay.Port) underlay.Port { return &standing{Fake: p.(*underlaytest.Fake)} },
		})
		b.Apply(config.Device{Settings: config.Settings{SpreadPorts: &spread.Ports{First: 60000, Last: 62999}}})
		time.Sleep(10 * time.Second)
		if s := a.PeerStatus(b).Spread; !s.Active || s.Sprays != 0 {
			t.Errorf("spread: %+v", s)
		}
	})
}
