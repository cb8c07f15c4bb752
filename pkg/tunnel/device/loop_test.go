// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// loopRig is two hosts. The route of the first to addresses in loops leads into its tunnel.
type loopRig struct {
	t    *testing.T
	a, b *devicetest.Host
	sent atomic.Int64 // datagrams of a

	freePort atomic.Uint32 // messages from there never loop
	fails    atomic.Bool   // each lookup
	lookups  atomic.Int64
	cut      atomic.Bool // the network delivers nothing

	mu    sync.Mutex
	loops map[netip.Addr]bool
	log   bytes.Buffer
}

func newLoopRig(t *testing.T) *loopRig {
	t.Helper()
	r := &loopRig{t: t, loops: map[netip.Addr]bool{}}
	var at []netip.Addr
	lan := devicetest.NewLAN(func(from, _ netip.AddrPort, _ []byte) underlaytest.Verdict {
		if slices.Contains(at, from.Addr()) {
			r.sent.Add(1)
		}
		if r.cut.Load() {
			return underlaytest.Drop
		}
		return underlaytest.Deliver
	})
	r.a = lan.Host(t, 1, devicetest.Options{Route: r.route, Loops: r.lookUpLoop, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	r.b = lan.Host(t, 2, devicetest.Options{})
	at = []netip.Addr{r.a.Outside(false).Addr(), r.a.Outside(true).Addr()}
	for _, h := range []*devicetest.Host{r.a, r.b} {
		h.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
	}
	devicetest.Connect(r.a, r.b)
	time.Sleep(time.Second)
	return r
}

// text returns the log, once nobody writes to it.
func (r *loopRig) text() string {
	synctest.Wait()
	return r.log.String()
}

func (r *loopRig) leadsIntoTunnel(to *underlay.Endpoint, port uint16) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loops[to.Dst.Addr()] && uint32(port) != r.freePort.Load()
}

func (r *loopRig) route(to *underlay.Endpoint, _ uint32) device.Route {
	if r.leadsIntoTunnel(to, devicetest.ListenPort) {
		return device.Route{MTU: 1420, Hops: "tunnel"}
	}
	return device.Route{MTU: 1500, Hops: "cable"}
}

func (r *loopRig) lookUpLoop(to *underlay.Endpoint, port uint16, _ uint32) (bool, error) {
	r.lookups.Add(1)
	if r.fails.Load() {
		return false, syscall.EMFILE
	}
	return r.leadsIntoTunnel(to, port), nil
}

// set lets the route to the second host lead into the tunnel, or not.
func (r *loopRig) set(loops bool) {
	r.mu.Lock()
	r.loops[r.b.Outside(false).Addr()] = loops
	r.mu.Unlock()
	r.a.RoutesChanged()
	time.Sleep(2 * time.Second)
}

func (r *loopRig) drops() uint64 { return r.a.Drops(drop.TXLoop) }

// expectQuiet has the first host send for ten seconds: nothing leaves, and the packets are counted.
func (r *loopRig) expectQuiet() {
	r.t.Helper()
	before, dropped := r.sent.Load(), r.drops()
	for range 10 {
		r.a.Send(flow.WithVnetHeader(r.a.To(r.b, 1, false).UDP(nil)))
		time.Sleep(time.Second)
	}
	if n := r.sent.Load() - before; n != 0 {
		r.t.Errorf("%d datagrams left", n)
	}
	if n := r.drops() - dropped; n == 0 {
		r.t.Error("nothing was counted as dropped for the loop")
	}
}

// expectLog wants a number of warnings about the loop.
func (r *loopRig) expectLog(warnings int) {
	r.t.Helper()
	text := r.text()
	if n := strings.Count(text, "leads into the tunnel itself"); n != warnings || strings.Count(text, "level=WARN") != warnings {
		r.t.Errorf("got %d warnings about a loop, want %d and no others in\n%s", n, warnings, text)
	}
	for _, want := range []string{"endpoint=" + r.b.Outside(false).String(), r.b.Public().String()} {
		if !strings.Contains(text, want) {
			r.t.Errorf("the log lacks %s", want)
		}
	}
}

func TestLoopingRouteStopsPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		for range 2 {
			r.set(true)
			r.expectQuiet()
			r.set(false)
			talk(t, r.a, r.b)
		}
		r.expectLog(2)
	})
}

// TestLoopLeavesNoPathLimit has a host that refuses a size in the loop.
func TestLoopLeavesNoPathLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		time.Sleep(2 * time.Second)
		for _, before := range []bool{true, false} { // before the loop was looked up, and after it
			if before {
				r.a.PeerOf(r.b.Public()).TooBig(1400)
				time.Sleep(2 * time.Second)
			}
			r.set(true)
			if !before {
				r.a.PeerOf(r.b.Public()).TooBig(1400)
				time.Sleep(2 * time.Second)
			}
			r.set(false)
			wantLimit(t, r.a, r.b, config.PathMTURoute, 1500, 0)
		}
	})
}

// TestLoopingRouteStopsHandshakes has a route that leads into the tunnel from the beginning.
func TestLoopingRouteStopsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		r.set(true)
		r.expectQuiet()
		r.expectLog(1)
		r.set(false)
		r.a.Send(flow.WithVnetHeader(r.a.To(r.b, 1, false).UDP(nil)))
		time.Sleep(10 * time.Second)
		if keys, _ := r.a.PeerOf(r.b.Public()).Sessions(); keys == nil {
			t.Error("no session after the end of the loop")
		}
	})
}

// TestLoopOutlastsChangeOfPort changes the listen port, which opens other sockets.
func TestLoopOutlastsChangeOfPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		r.set(true)
		port := uint16(devicetest.ListenPort + 1)
		r.a.Apply(config.Device{ListenPort: &port})
		r.expectQuiet()
	})
}

// TestLoopEndsWithAnotherEndpoint moves the peer to an address whose route is right, and back.
func TestLoopEndsWithAnotherEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		r.set(true)
		r.expectQuiet()
		endpoint := config.Endpoint{AddrPort: r.b.Outside(true)}
		r.a.Apply(config.Device{Peers: []config.Peer{{PublicKey: r.b.Public(), Endpoint: &endpoint}}})
		time.Sleep(2 * time.Second)
		talk(t, r.a, r.b)
		endpoint = config.Endpoint{AddrPort: r.b.Outside(false)}
		r.a.Apply(config.Device{Peers: []config.Peer{{PublicKey: r.b.Public(), Endpoint: &endpoint}}})
		time.Sleep(2 * time.Second)
		r.expectQuiet()
	})
}

// TestRouteLookupHasListenPort has rules by which only datagrams from the new listen port leave by the uplink.
func TestRouteLookupHasListenPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		port := uint16(devicetest.ListenPort + 1)
		r.freePort.Store(uint32(port))
		r.set(true)
		r.a.Apply(config.Device{ListenPort: &port})
		time.Sleep(2 * time.Second)
		before := r.drops()
		talk(t, r.a, r.b)
		if n := r.drops() - before; n != 0 {
			t.Errorf("%d packets were dropped for the loop that has ended", n)
		}
	})
}

// TestFailedLookupLeavesLoop has lookups fail while the route leads into the tunnel, and while it does not.
func TestFailedLookupLeavesLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		r.set(true)
		r.fails.Store(true)
		r.a.RoutesChanged()
		r.expectQuiet()
		time.Sleep(10 * time.Second) // until the peer's silence makes a handshake
		if text := r.text(); strings.Contains(text, "does not lead") {
			t.Errorf("a failed lookup counts as another route in\n%s", text)
		}
		r.fails.Store(false)
		r.set(false)
		talk(t, r.a, r.b)
		r.fails.Store(true)
		r.set(true)
		talk(t, r.a, r.b)
		r.expectLog(1)
	})
}

// TestFlappingLoopIsLoggedRarely has a route that changes 60 times in two minutes.
func TestFlappingLoopIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		for range 30 {
			r.set(true)
			r.set(false)
		}
		for _, text := range []string{"does not lead", "leads into"} {
			if n := strings.Count(r.text(), text); n < 8 || n > 24 { // eight a minute
				t.Errorf("%q was logged %d times", text, n)
			}
		}
	})
}

// TestHandshakeLooksLoopUpAfterChanges has a peer that does not answer, so that its route is looked up for handshake messages alone.
func TestHandshakeLooksLoopUpAfterChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		r.cut.Store(true)
		mark, port := uint32(7), uint16(devicetest.ListenPort+1)
		endpoint := config.Endpoint{AddrPort: r.b.Outside(true)}
		for _, change := range []struct {
			name string
			make func()
			want int64 // lookups
		}{
			{"the first message", func() {}, 1},
			{"nothing", func() {}, 0},
			{"routes", r.a.RoutesChanged, 1},
			{"the mark", func() { r.a.Apply(config.Device{FwMark: &mark}) }, 1},
			{"the port", func() { r.a.Apply(config.Device{ListenPort: &port}) }, 1},
			{"the endpoint", func() {
				r.a.Apply(config.Device{Peers: []config.Peer{{PublicKey: r.b.Public(), Endpoint: &endpoint}}})
			}, 1},
			{"time", func() { time.Sleep(5 * time.Minute) }, 1},
			{"a failed lookup", func() { r.fails.Store(true); r.a.RoutesChanged(); time.Sleep(time.Minute); r.fails.Store(false) }, 1},
		} {
			change.make()
			r.a.Send(flow.WithVnetHeader(r.a.To(r.b, 1, false).UDP(nil)))
			if change.name == "a failed lookup" {
				r.lookups.Store(0)
			}
			before := r.sent.Load()
			time.Sleep(20 * time.Second)
			if n := r.lookups.Swap(0); n != change.want {
				t.Errorf("%s: %d lookups, want %d", change.name, n, change.want)
			}
			if n := r.sent.Load() - before; n < 3 {
				t.Errorf("%s: %d initiations", change.name, n)
			}
		}
	})
}

// TestLoopIsFoundAgainBeforeHandshake moves a peer without a session away for less than the time between two initiations.
func TestLoopIsFoundAgainBeforeHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		r.cut.Store(true)
		r.set(true)
		r.expectQuiet()
		time.Sleep(500 * time.Millisecond)
		for _, v6 := range []bool{true, false} {
			endpoint := config.Endpoint{AddrPort: r.b.Outside(v6)}
			r.a.Apply(config.Device{Peers: []config.Peer{{PublicKey: r.b.Public(), Endpoint: &endpoint}}})
			time.Sleep(1500 * time.Millisecond)
		}
		r.expectQuiet()
	})
}

// TestRoamIntoLoopIsRefusedSoon has a peer that roams often, and then to an address whose route leads into the tunnel.
func TestRoamIntoLoopIsRefusedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLoopRig(t)
		talk(t, r.a, r.b)
		p := r.a.PeerOf(r.b.Public())
		inside := netip.MustParseAddrPort("10.0.0.77:51820")
		r.mu.Lock()
		r.loops[inside.Addr()] = true
		r.mu.Unlock()
		r.lookups.Store(0)
		for i := range uint16(6500) { // in 65 s
			p.Roam(underlay.Endpoint{Dst: netip.AddrPortFrom(r.b.Outside(false).Addr(), 40000+i%2)})
			time.Sleep(10 * time.Millisecond)
		}
		if n := r.lookups.Load(); n > 75 { // one a second, and one for each round
			t.Errorf("%d lookups in 65 s", n)
		}
		p.Roam(underlay.Endpoint{Dst: inside})
		time.Sleep(1500 * time.Millisecond)
		r.expectQuiet()
	})
}
