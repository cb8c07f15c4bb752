// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// stockPair is a host and a peer that answers no probes, and the messages between them.
func stockPair(t *testing.T, o devicetest.Options) (a, b *devicetest.Host, seen *messages) {
	t.Helper()
	seen = new(messages)
	lan := devicetest.NewLAN(seen.filter)
	a, b = lan.Host(t, 1, o), lan.Host(t, 2, devicetest.Options{})
	off := config.SpreadOff
	b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
	devicetest.Connect(a, b)
	return a, b, seen
}

func wantLimit(t *testing.T, a, b *devicetest.Host, state config.PathMTUState, size, inner int) {
	t.Helper()
	if got := a.PeerStatus(b).PathMTU; got.State != state || got.Bytes != size || got.InnerBytes != inner {
		t.Errorf("got path MTU %d (%s), and %d inside, want %d (%s), and %d", got.Bytes, got.State, got.InnerBytes, size, state, inner)
	}
}

func TestRouteMTULimitsInnerPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mtu atomic.Int64
		mtu.Store(1400)
		a, b, _ := stockPair(t, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route {
			if n := int(mtu.Load()); n > 0 {
				return device.Route{MTU: n}
			}
			return device.Route{}
		}})
		wantLimit(t, a, b, config.PathMTUUnknown, 0, 0)
		talk(t, a, b)
		time.Sleep(2 * time.Second)
		wantLimit(t, a, b, config.PathMTURoute, 1400, 1328)
		for _, tt := range []struct {
			mtu   int64
			state config.PathMTUState
			inner int
		}{{1500, config.PathMTURoute, 0}, {0, config.PathMTUUnknown, 0}, {1300, config.PathMTURoute, 1232}} {
			mtu.Store(tt.mtu)
			a.RoutesChanged()
			time.Sleep(2 * time.Second)
			wantLimit(t, a, b, tt.state, int(tt.mtu), tt.inner)
		}
		mtu.Store(1350)
		a.PeerOf(b.Public()).TooBig(1452)
		time.Sleep(time.Second)
		wantLimit(t, a, b, config.PathMTURoute, 1350, 1280)
	})
}

// TestRouteLookupsAreFew has a device that refuses every message.
func TestRouteLookupsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lookups atomic.Int64
		a, b, _ := stockPair(t, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route {
			lookups.Add(1)
			return device.Route{MTU: 1500}
		}})
		talk(t, a, b)
		time.Sleep(2 * time.Second)
		before := lookups.Load()
		for range 1000 {
			a.PeerOf(b.Public()).TooBig(1300)
			time.Sleep(10 * time.Millisecond)
		}
		if n := lookups.Load() - before; n < 9 || n > 11 {
			t.Errorf("got %d lookups in 10 s, want one per second", n)
		}
	})
}

// TestRouteLookupsOfManyPeersAreSpread has peers that all look up their routes, because one has changed.
func TestRouteLookupsOfManyPeersAreSpread(t *testing.T) {
	a, _ := devicetest.Pair(t, devicetest.Options{})
	now, millisecond := int64(time.Hour), int64(time.Millisecond)
	for i := range int64(device.MaxPeers + 1) {
		if got := a.ReserveLookUp(now); got != now+i*millisecond {
			t.Fatalf("peer %d may look up its route after %v, want %d ms", i, time.Duration(got-now), i)
		}
	}
	if got := a.ReserveLookUp(now); got != now { // no device has so many peers
		t.Errorf("after the clock has gone back: got a turn after %v, want at once", time.Duration(got-now))
	}
	now += int64(time.Minute)
	if got := a.ReserveLookUp(now); got != now {
		t.Errorf("a minute later: got a turn after %v, want at once", time.Duration(got-now))
	}
}

// TestRefusedSizeLimitsInnerPackets has a host that refuses what its route would carry, as with IPsec.
func TestRefusedSizeLimitsInnerPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mtu atomic.Int64
		mtu.Store(1500)
		a, b, _ := stockPair(t, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route {
			return device.Route{MTU: int(mtu.Load())}
		}})
		talk(t, a, b)
		time.Sleep(2 * time.Second)
		refuse := func() {
			a.PeerOf(b.Public()).TooBig(1452)
			time.Sleep(2 * time.Second)
			wantLimit(t, a, b, config.PathMTUHost, 1476, 1408)
		}
		refuse()
		a.PeerOf(b.Public()).TooBig(1440)
		time.Sleep(2 * time.Second)
		wantLimit(t, a, b, config.PathMTUHost, 1460, 1392)
		converse(t, a, b, 130)
		wantLimit(t, a, b, config.PathMTURoute, 1500, 0)
		refuse()
		mtu.Store(9000) // another route
		a.RoutesChanged()
		time.Sleep(2 * time.Second)
		wantLimit(t, a, b, config.PathMTURoute, 9000, 0)
	})
}

// TestRefusalDoesNotFollowPeer has a refusal that waits for a lookup of the route when the peer roams.
func TestRefusalDoesNotFollowPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := stockPair(t, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route { return device.Route{MTU: 1500} }})
		talk(t, a, b)
		time.Sleep(5 * time.Second)
		a.PeerOf(b.Public()).TooBig(1452)
		time.Sleep(10 * time.Millisecond)
		a.PeerOf(b.Public()).TooBig(1376)
		port := uint16(devicetest.ListenPort + 1)
		b.Apply(config.Device{ListenPort: &port})
		talk(t, b, a)
		time.Sleep(3 * time.Second)
		wantLimit(t, a, b, config.PathMTURoute, 1500, 0)
	})
}

// tooBig returns the ICMP error of a router with the MTU 1400 about a message from a to b.
func tooBig(a, b *devicetest.Host, message []byte) *toobig.Message {
	return &toobig.Message{MTU: 1400, Size: 1480, From: a.Outside(false), To: b.Outside(false), Payload: slices.Clone(message)}
}

func TestReportedSizeLimitsInnerPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, seen := stockPair(t, devicetest.Options{})
		talk(t, a, b)
		own := seen.latestFrom(a.Outside(false).Addr(), wire.TypeData)
		a.OnTooBig(tooBig(a, b, own[:wire.DataHeaderLen]))
		time.Sleep(time.Second)
		wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		for mtu, want := range map[int]int{1390: 1390, 68: 576, 0: 576} { // 0 is not said: the next common size below that of the packet
			m := tooBig(a, b, own)
			m.MTU = mtu
			if mtu == 0 {
				m.Size = 576
			}
			a.OnTooBig(m)
			time.Sleep(time.Second)
			if got := a.PeerStatus(b).PathMTU.Bytes; got > want {
				t.Errorf("reported %d: got %d, want at most %d", mtu, got, want)
			}
		}
		time.Sleep(11 * time.Minute)
		wantLimit(t, a, b, config.PathMTUUnknown, 0, 0)
	})
}

// TestErrorsOfThisHostAreIgnored has errors that it made about its own packets, as in a routing loop.
func TestErrorsOfThisHostAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := netip.MustParseAddr("192.0.2.77")
		a, b, seen := stockPair(t, devicetest.Options{OwnError: func(m *toobig.Message) bool { return m.By == local }})
		talk(t, a, b)
		m := tooBig(a, b, seen.latestFrom(a.Outside(false).Addr(), wire.TypeData))
		m.By = local
		a.OnTooBig(m)
		time.Sleep(time.Second)
		wantLimit(t, a, b, config.PathMTUUnknown, 0, 0)
		m.By = netip.MustParseAddr("192.0.2.78")
		a.OnTooBig(m)
		time.Sleep(time.Second)
		wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		if got := a.Stats().(device.Stats).PathMTUErrors; got != (config.ICMPErrorCounts{Believed: 1, Ignored: 1}) {
			t.Errorf("got %+v, want one believed and one ignored", got)
		}
	})
}

// TestAnotherRouteForgetsReports keeps the MTU of the route.
func TestAnotherRouteForgetsReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hops atomic.Pointer[string]
		hops.Store(new("first"))
		a, b, seen := stockPair(t, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route {
			return device.Route{MTU: 1500, Hops: *hops.Load()}
		}})
		talk(t, a, b)
		report := func() {
			a.OnTooBig(tooBig(a, b, seen.latestFrom(a.Outside(false).Addr(), wire.TypeData)))
			time.Sleep(2 * time.Second)
			wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		}
		report()
		a.RoutesChanged()
		time.Sleep(2 * time.Second)
		wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		for _, next := range []string{"", "first"} { // no route for a moment
			hops.Store(&next)
			a.RoutesChanged()
			time.Sleep(2 * time.Second)
			wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		}
		hops.Store(new("second"))
		a.RoutesChanged()
		time.Sleep(2 * time.Second)
		wantLimit(t, a, b, config.PathMTURoute, 1500, 0)
		report()
	})
}

// TestForgedReportsAreIgnored changes the parts that an attacker off the path cannot know, and others.
func TestForgedReportsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, seen := stockPair(t, devicetest.Options{})
		talk(t, a, b)
		own, foreign := seen.latestFrom(a.Outside(false).Addr(), wire.TypeData), seen.latestFrom(b.Outside(false).Addr(), wire.TypeData)
		forged := map[string]func(m *toobig.Message){
			"receiver index":    func(m *toobig.Message) { m.Payload[4]++ },
			"counter":           func(m *toobig.Message) { binary.LittleEndian.PutUint64(m.Payload[8:], 1<<20) },
			"type":              func(m *toobig.Message) { m.Payload[0] = byte(wire.TypeInitiation) },
			"reserved bytes":    func(m *toobig.Message) { m.Payload[1] = 1 },
			"short":             func(m *toobig.Message) { m.Payload = m.Payload[:wire.DataHeaderLen-1] },
			"empty":             func(m *toobig.Message) { m.Payload = nil },
			"destination":       func(m *toobig.Message) { m.To = netip.AddrPortFrom(m.To.Addr(), 1) },
			"size that fits":    func(m *toobig.Message) { m.MTU = m.Size },
			"the peer's answer": func(m *toobig.Message) { copy(m.Payload, foreign[:wire.DataHeaderLen]) },
		}
		for name, forge := range forged {
			m := tooBig(a, b, own)
			forge(m)
			a.OnTooBig(m)
			time.Sleep(time.Second)
			if got := a.PeerStatus(b).PathMTU; got.State != config.PathMTUUnknown {
				t.Errorf("%s: got %+v", name, got)
			}
		}
		if got := a.Stats().(device.Stats).PathMTUErrors; got != (config.ICMPErrorCounts{Ignored: uint64(len(forged))}) {
			t.Errorf("got %+v, want all %d ignored", got, len(forged))
		}
	})
}

// TestFalseReportIsRefutedSoon has a router that reports a size which is too small, about a message from a source port that the search does not
// know yet: flows begin to be spread after it.
func TestFalseReportIsRefutedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := new(messages)
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		m := tooBig(a, b, seen.latestFrom(a.Outside(false).Addr(), wire.TypeData))
		m.From = netip.AddrPortFrom(m.From.Addr(), spread.DefaultPorts.First+uint16(a.PeerStatus(b).Spread.Ports)/2)
		a.OnTooBig(m)
		if got := a.Stats().(device.Stats).PathMTUErrors; got.Believed != 1 {
			t.Errorf("got %+v, want the report believed", got)
		}
		time.Sleep(time.Second)
		wantPathMTU(t, a, b, 1480, 0)
	})
}

func TestPermittedFragmentsLiftLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := stockPair(t, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route { return device.Route{MTU: 1400} }})
		talk(t, a, b)
		time.Sleep(2 * time.Second)
		wantLimit(t, a, b, config.PathMTURoute, 1400, 1328)
		on, off := config.OnOff(true), config.OnOff(false)
		a.Apply(config.Device{Settings: config.Settings{OuterFragments: &on}})
		wantLimit(t, a, b, config.PathMTUUnknown, 0, 0)
		if s := a.Stats().(device.Stats); s.Underlay.DontFragment {
			t.Error("the port still forbids fragments")
		}
		a.Apply(config.Device{Settings: config.Settings{OuterFragments: &off}})
		wantLimit(t, a, b, config.PathMTURoute, 1400, 1328)
	})
}

// TestRoamingForgetsReports has a path that is another one.
func TestRoamingForgetsReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, seen := stockPair(t, devicetest.Options{})
		talk(t, a, b)
		a.OnTooBig(tooBig(a, b, seen.latestFrom(a.Outside(false).Addr(), wire.TypeData)))
		time.Sleep(time.Second)
		wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		port := uint16(devicetest.ListenPort + 1)
		b.Apply(config.Device{ListenPort: &port})
		talk(t, b, a)
		time.Sleep(time.Second)
		wantLimit(t, a, b, config.PathMTUUnknown, 0, 0)
	})
}

// TestProbesOutweighReports has an attacker on the path who sends a report that is not true, and then a router that means it.
func TestProbesOutweighReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mtu atomic.Int64
		mtu.Store(1500)
		seen := new(messages)
		lan := devicetest.NewLAN(func(from, to netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if len(datagram)+ipv4Headers > int(mtu.Load()) {
				return underlaytest.Drop
			}
			return seen.filter(from, to, datagram)
		})
		route := func(*underlay.Endpoint, uint32) device.Route { return device.Route{MTU: 1500} }
		a, b := lan.Host(t, 1, devicetest.Options{Route: route}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		converse(t, a, b, 5)
		wantPathMTU(t, a, b, 1480, 0)
		report := func() {
			m := tooBig(a, b, seen.latestFrom(a.Outside(false).Addr(), wire.TypeData))
			m.MTU = 1400
			a.OnTooBig(m)
		}
		report()
		time.Sleep(2 * time.Second)
		wantPathMTU(t, a, b, 1480, 0)

		mtu.Store(1400)
		converse(t, a, b, 1)
		report()
		synctest.Wait()
		wantLimit(t, a, b, config.PathMTUICMP, 1400, 1328)
		converse(t, a, b, 60)
		wantPathMTU(t, a, b, 1400, 1328)
	})
}

// TestReportBelowIPv6MinimumIsDiscarded has a report that is right in everything else (RFC 8201, section 4).
func TestReportBelowIPv6MinimumIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := new(messages)
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		off := config.SpreadOff
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		a.Apply(config.Device{Peers: []config.Peer{b.AsPeer(true)}})
		b.Apply(config.Device{Peers: []config.Peer{a.AsPeer(true)}})
		talk(t, a, b)
		own := seen.latestFrom(a.Outside(true).Addr(), wire.TypeData)
		for _, tt := range []struct{ mtu, want int }{{0, 0}, {1279, 0}, {1280, 1280}} {
			m := tooBig(a, b, own)
			m.MTU, m.From, m.To = tt.mtu, a.Outside(true), b.Outside(true)
			a.OnTooBig(m)
			time.Sleep(time.Second)
			if got := a.PeerStatus(b).PathMTU.Bytes; got != tt.want {
				t.Errorf("reported %d: got %d, want %d", tt.mtu, got, tt.want)
			}
		}
	})
}

// TestForgedReportsAllocateNothing has an index of the peers that lasts longer than one message.
func TestForgedReportsAllocateNothing(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{})
	talk(t, a, b)
	m := tooBig(a, b, make([]byte, wire.DataHeaderLen))
	m.Payload[0] = byte(wire.TypeData)
	a.OnTooBig(m)
	if n := testing.AllocsPerRun(100, func() { a.OnTooBig(m) }); n != 0 {
		t.Errorf("got %v allocations per message, want 0", n)
	}
}

// TestNewRouteMTUBeginsSearch has a device that becomes larger.
func TestNewRouteMTUBeginsSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mtu atomic.Int64
		mtu.Store(1400)
		w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > int(mtu.Load()) }}
		a, b := tappedPair(t, w, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route {
			return device.Route{MTU: int(mtu.Load())}
		}})
		talk(t, a, b)
		converse(t, a, b, 60)
		wantPathMTU(t, a, b, 1400, 1328)
		mtu.Store(1500)
		a.RoutesChanged()
		time.Sleep(5 * time.Second)
		wantPathMTU(t, a, b, 1480, 0)
	})
}

// TestPathMTUIsLogged has a path that becomes narrow and wide again.
func TestPathMTUIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mtu atomic.Int64
		mtu.Store(1400)
		var log lockedText
		w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > int(mtu.Load()) }}
		a, b := tappedPair(t, w, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		talk(t, a, b)
		converse(t, a, b, 60)
		mtu.Store(1500)
		converse(t, a, b, 700)
		for _, want := range []string{"path_mtu=1400 inner_mtu=1328 state=confirmed", "path_mtu=1480 inner_mtu=0 state=confirmed"} {
			if n := strings.Count(log.String(), want); n == 0 || n > 2 {
				t.Errorf("got %d lines with %q, want one of each host:\n%s", n, want, log.String())
			}
		}
	})
}

// TestRoamingPeerDoesNotDelayLookups has a peer that moves with every message, and another one whose route must be looked up.
func TestRoamingPeerDoesNotDelayLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		var lookups atomic.Int64
		v4, _ := devicetest.Addresses(3)
		a := lan.Host(t, 1, devicetest.Options{Route: func(to *underlay.Endpoint, _ uint32) device.Route {
			if to.Dst.Addr() == v4 {
				lookups.Add(1)
			}
			return device.Route{MTU: 1500}
		}})
		b, c := lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		for _, h := range []*devicetest.Host{b, c} {
			h.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
			devicetest.Connect(a, h)
			talk(t, a, h)
		}
		time.Sleep(5 * time.Second)
		for i := range uint16(2000) {
			a.PeerOf(b.Public()).Roam(underlay.Endpoint{Dst: netip.AddrPortFrom(b.Outside(false).Addr(), 4000+i%2)})
			synctest.Wait()
		}
		before := lookups.Load()
		a.PeerOf(c.Public()).TooBig(1452)
		time.Sleep(50 * time.Millisecond)
		if lookups.Load() == before {
			t.Error("the route to the other peer was not looked up within 50 ms")
		}
	})
}
