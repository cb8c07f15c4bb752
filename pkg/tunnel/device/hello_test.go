// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// hello tells whether a datagram may be one: tests that use it carry larger packets.
func (d tapped) hello() bool {
	return d.kind == wire.TypeData && d.size >= wire.DataOverhead+wire.MinHelloSize && d.size <= wire.DataOverhead+wire.MaxHelloSize+16
}

// drain discards the packets that arrive at a host.
func drain(t *testing.T, h *devicetest.Host) {
	go func() {
		for {
			if _, err := h.TUN.Receive(t.Context(), 0); err != nil {
				return
			}
		}
	}()
}

// burst sends one packet of each of 16 flows.
func burst(from, to *devicetest.Host) {
	for i := range 16 {
		from.Send(flow.WithVnetHeader(from.To(to, uint16(3000+i), false).UDP(make([]byte, 500))))
	}
	time.Sleep(10 * time.Millisecond)
}

// wantSoon waits seconds, not a handshake's two minutes, until both spread. A packet each way lets handshakes complete.
func wantSoon(t *testing.T, a, b *devicetest.Host) {
	t.Helper()
	for range 8 {
		carries(t, a, b, false, 500)
		carries(t, b, a, false, 500)
		time.Sleep(time.Second)
	}
	if !spreads(a, b)() || !spreads(b, a)() {
		t.Errorf("still not: %+v, %+v", a.PeerStatus(b).Spread, b.PeerStatus(a).Spread)
	}
}

// TestSingleHelloLossDoesNotPreventSpread loses, in turn, each of the first few hellos of each side, from each kind of port.
func TestSingleHelloLossDoesNotPreventSpread(t *testing.T) {
	for _, loser := range []byte{1, 2} {
		for _, fromSource := range []bool{false, true} {
			for nth := 1; nth <= 4; nth++ {
				t.Run(fmt.Sprintf("host %d, source port %v, number %d", loser, fromSource, nth), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						count := 0
						v4, _ := devicetest.Addresses(loser)
						w := wiretap{lose: func(d tapped) bool {
							if d.hello() && d.from.Addr() == v4 && (d.from.Port() != devicetest.ListenPort) == fromSource {
								count++
								return count == nth
							}
							return false
						}}
						a, b := tappedPair(t, &w, devicetest.Options{})
						wantSoon(t, a, b)
					})
				})
			}
		}
	}
}

// TestSpreadResumesAfterPeerRestart: the one knows nothing any more, and the other thinks that all is known.
func TestSpreadResumesAfterPeerRestart(t *testing.T) {
	for _, speaksFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("speaks first %v", speaksFirst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := devicetest.Pair(t, devicetest.Options{})
				wantSoon(t, a, b)
				b.Apply(config.Device{Peers: []config.Peer{{PublicKey: a.Public(), Remove: true}}})
				b.Apply(config.Device{Peers: []config.Peer{a.AsPeer(false)}})
				if !speaksFirst {
					time.Sleep(200 * time.Second) // a's session has ended
					wantSoon(t, a, b)
					return
				}
				carries(t, b, a, false, 500)
				time.Sleep(time.Second) // a has learned of the new session
				wantSoon(t, b, a)
			})
		})
	}
}

// TestEndpointStaysWhenTheConfirmingKeepaliveIsLost lets the receiver of one-way traffic start a new
// session. The sender, which has not confirmed it, continues to spread.
func TestEndpointStaysWhenTheConfirmingKeepaliveIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var armed, lost atomic.Bool
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool {
			return armed.Load() && d.from.Addr() == v4 && d.keepalive() && !lost.Swap(true)
		}}
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		drain(t, a)
		burst(b, a)
		armed.Store(true)
		a.PeerOf(b.Public()).Initiate()
		for range 2000 {
			burst(b, a)
			if at := a.PeerStatus(b).Endpoint.AddrPort; at != b.Outside(false) {
				t.Fatalf("the endpoint moved to %v", at)
			}
		}
		if !lost.Load() {
			t.Error("no keepalive was lost")
		}
		if s := b.PeerStatus(a).Spread; !s.Active {
			t.Errorf("spread is off: %s", s.Reason)
		}
	})
}

// TestSpreadOnAtBothEndsNeedsNoHello checks that messages from spread ports do not roam.
func TestSpreadOnAtBothEndsNeedsNoHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wiretap{lose: tapped.hello}
		a, b := tappedPair(t, &w, devicetest.Options{})
		on := config.SpreadOn
		a.Apply(config.Device{Settings: config.Settings{Spread: &on}})
		b.Apply(config.Device{Settings: config.Settings{Spread: &on}})
		carries(t, a, b, false, 500)
		time.Sleep(10 * time.Second)
		drain(t, b)
		for range 100 {
			burst(a, b)
			if at := b.PeerStatus(a).Endpoint.AddrPort; at != a.Outside(false) {
				t.Fatalf("the endpoint moved to %v", at)
			}
		}
		if n := len(w.sources(a.N)); n < 16 {
			t.Errorf("16 flows from %d ports", n)
		}
	})
}

func TestNATIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return translated{p} }})
		b := lan.Host(t, 2, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		devicetest.Connect(a, b)
		for range 500 { // four handshakes
			carries(t, a, b, false, 500)
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "behind a NAT"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
	})
}

// TestPlanIsMadeOncePerSession: two sides whose plans never are the same again must not talk about them for ever.
func TestPlanIsMadeOncePerSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		var plans atomic.Int32
		a, b := tappedPair(t, &w, devicetest.Options{
			Plan: func(_ netip.AddrPort, _ *underlay.Endpoint, _ uint32, c spread.Ports) []uint16 {
				plans.Add(1)
				return []uint16{c.First + uint16(rand.IntN(c.Len()))}
			},
		})
		wantSoon(t, a, b)
		w.forget()
		plans.Store(0)
		for range 60 {
			time.Sleep(time.Second)
			carries(t, a, b, false, 500)
		}
		if n := w.count(a.N, tapped.hello) + w.count(b.N, tapped.hello); n != 0 || plans.Load() != 0 {
			t.Errorf("%d hellos and %d plans in a minute without a handshake", n, plans.Load())
		}
	})
}

// TestFlowsKeepPortsWhenPeerChangesRange: that is nothing to them.
func TestFlowsKeepPortsWhenPeerChangesRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		drain(t, b)
		time.Sleep(spread.DefaultGap)
		w.forget()
		burst(a, b)
		before := len(w.sources(a.N))
		b.Apply(config.Device{Settings: config.Settings{SpreadPorts: &spread.Ports{First: 62000, Last: 62100}}})
		for range 600 {
			burst(a, b)
		}
		if n := len(w.sources(a.N)); before != 16 || n != 16 {
			t.Errorf("16 flows took %d ports, and then %d", before, n)
		}
		if n := w.count(a.N, func(d tapped) bool { return d.from.Port() == devicetest.ListenPort && d.size > 400 }); n != 0 {
			t.Errorf("%d of their messages left from the listen port", n)
		}
	})
}

// TestPlansAreUsedWholeOrNotAtAll: there are not sources enough for all that peers may plan.
func TestPlansAreUsedWholeOrNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const planned, peers = 20, 14
		lan := devicetest.NewLAN(nil)
		hub := lan.Host(t, 1, devicetest.Options{})
		unplanned := 0
		for i := range peers {
			p := lan.Host(t, byte(10+i), devicetest.Options{
				Plan: func(netip.AddrPort, *underlay.Endpoint, uint32, spread.Ports) (plan []uint16) {
					for k := range planned {
						plan = append(plan, uint16(61100+planned*i+k))
					}
					return plan
				},
			})
			devicetest.Connect(hub, p)
			wantSoon(t, hub, p)
			switch s := hub.PeerStatus(p).Spread; {
			case !s.Active || s.Planned && s.Ports != planned:
				t.Errorf("peer %d: %+v", i, s)
			case !s.Planned:
				unplanned++
			}
		}
		if unplanned == 0 || unplanned == peers {
			t.Errorf("%d of %d peers' plans were left out", unplanned, peers)
		}
	})
}

func TestSpreadResumesAfterOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		wantSoon(t, a, b)
		off, auto := config.SpreadOff, config.SpreadAuto
		a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		a.Await("it is off", why(a, b, "spreading is off"))
		a.Apply(config.Device{Settings: config.Settings{Spread: &auto}})
		wantSoon(t, a, b)
	})
}

// TestUnansweredHellosStopWithSession: the machine sleeps in the middle of a question. Under synctest a timer that
// fires without end would never let the test go on.
func TestUnansweredHellosStopWithSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		clock := engine.NewClock()
		o := devicetest.Options{Clock: func() int64 { return clock() + slept.Load() }}
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool { return d.hello() && d.from.Addr() == v4 }}
		a, b := tappedPair(t, &w, o)
		carries(t, a, b, false, 500)
		b.Await("it asks", why(b, a, "waiting"))
		slept.Store(int64(5 * time.Minute))
		time.Sleep(10 * time.Second)
	})
}

// TestNewPortHasNoOldSources changes the listen port under load: sources are numbered anew.
func TestNewPortHasNoOldSources(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{})
	talk(t, a, b)
	bothSpread(t, a, b)
	drain(t, b)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = a.TUN.Inject(0, flow.WithVnetHeader(a.To(b, uint16(3000+i%16), false).UDP(make([]byte, 500))))
			}
		}
	})
	for i := range 50 {
		port := uint16(4000 + i)
		a.Apply(config.Device{ListenPort: &port})
	}
	close(stop)
	wg.Wait()
	a.Await("it spreads again", func() bool {
		burst(a, b)
		return spreads(a, b)()
	})
	if at := b.PeerStatus(a).Endpoint.AddrPort; at != a.Outside(false) {
		t.Errorf("the endpoint is %v, want %v", at, a.Outside(false))
	}
}

// pauseRoams has b roam from a's view with each message, until the next round of hellos is many seconds away, and then return.
func pauseRoams(t *testing.T, a, b *devicetest.Host) {
	t.Helper()
	for i := range byte(200) {
		elsewhere := netip.AddrFrom4([4]byte{203, 0, 113, i % 2})
		a.PeerOf(b.Public()).Roam(underlay.Endpoint{Dst: netip.AddrPortFrom(elsewhere, devicetest.ListenPort)})
		time.Sleep(100 * time.Millisecond)
	}
	carries(t, b, a, false, 100)
}

// TestSessionInRoamPauseSpreadsAfterIt begins a session in which the peer's hellos come before they may be answered.
func TestSessionInRoamPauseSpreadsAfterIt(t *testing.T) {
	for name, initiate := range map[string]func(a, b *devicetest.Host){
		"initiator": func(a, b *devicetest.Host) { a.PeerOf(b.Public()).Initiate() },
		"responder": func(a, b *devicetest.Host) { b.PeerOf(a.Public()).Initiate() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := devicetest.Pair(t, devicetest.Options{})
				wantSoon(t, a, b)
				pauseRoams(t, a, b)
				initiate(a, b)
				for range 60 {
					time.Sleep(time.Second)
					if why(a, b, "does not run ropewalk")() {
						t.Fatalf("the peer counts as a stock WireGuard: %+v", a.PeerStatus(b).Spread)
					}
				}
				if !spreads(a, b)() || !spreads(b, a)() {
					t.Errorf("still not: %+v, %+v", a.PeerStatus(b).Spread, b.PeerStatus(a).Spread)
				}
			})
		})
	}
}

// TestHelloInRoamPauseIsAnsweredOnce has a peer that asks for a hello long before the next round.
func TestHelloInRoamPauseIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		pauseRoams(t, a, b)
		b.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}}) // it sends no hello itself
		at := underlay.Endpoint{Dst: b.Outside(false)}
		answers := func(d tapped) bool { return d.hello() && d.from.Port() == devicetest.ListenPort }
		for _, asks := range []bool{true, false} {
			w.forget()
			hello := wire.AppendHello(nil, &wire.Hello{Own: at.Dst, Peer: a.Outside(false), NoReply: !asks})
			if why := a.PeerOf(b.Public()).Hello(hello, at); why != drop.None {
				t.Errorf("the hello was dropped: %v", why)
			}
			time.Sleep(2 * time.Second)
			if n := w.count(a.N, answers); (n == 1) != asks || n > 1 {
				t.Errorf("a hello that asks for one, %t, was answered %d times", asks, n)
			}
		}
	})
}

// TestFirstHelloInRoamPauseIsHandledAfterIt has only that hello say that the peer runs ropewalk.
func TestFirstHelloInRoamPauseIsHandledAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		b.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
		talk(t, a, b)
		time.Sleep(10 * time.Second)
		pauseRoams(t, a, b)
		b.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadAuto)}})
		a.PeerOf(b.Public()).Initiate()
		time.Sleep(time.Minute)
		if !spreads(a, b)() || !spreads(b, a)() {
			t.Errorf("still not: %+v, %+v", a.PeerStatus(b).Spread, b.PeerStatus(a).Spread)
		}
	})
}

// TestHelloBeforeRoamMovesNobodyBack keeps a hello in a pause, and then has the peer roam.
func TestHelloBeforeRoamMovesNobodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		wantSoon(t, a, b)
		pauseRoams(t, a, b)
		down(b)
		before := underlay.Endpoint{Dst: b.Outside(false)}
		hello := wire.AppendHello(nil, &wire.Hello{Own: before.Dst, Peer: a.Outside(false), NoReply: true})
		if why := a.PeerOf(b.Public()).Hello(hello, before); why != drop.None {
			t.Errorf("the hello was dropped: %v", why)
		}
		elsewhere := netip.MustParseAddrPort("203.0.113.9:51820")
		a.PeerOf(b.Public()).Roam(underlay.Endpoint{Dst: elsewhere})
		time.Sleep(time.Minute)
		if at := a.PeerStatus(b).Endpoint.AddrPort; at != elsewhere {
			t.Errorf("the endpoint is %v, want %v", at, elsewhere)
		}
	})
}

// TestHelloFromNewListenPortRoams covers a peer that spreads all its data, so that only hellos show its listen port.
func TestHelloFromNewListenPortRoams(t *testing.T) {
	for _, mode := range []config.SpreadMode{config.SpreadAuto, config.SpreadOn} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := devicetest.Pair(t, devicetest.Options{})
				b.Apply(config.Device{Settings: config.Settings{Spread: &mode}})
				wantSoon(t, a, b)
				port := uint16(51900)
				b.Apply(config.Device{ListenPort: &port})
				time.Sleep(time.Second)
				if at := a.PeerStatus(b).Endpoint.AddrPort; at != b.Outside(false) {
					t.Errorf("the endpoint is %v, want %v", at, b.Outside(false))
				}
				wantSoon(t, a, b)
			})
		})
	}
}

// TestPlansLeaveSourcesForOtherPeers: it plans ever new ports.
func TestPlansLeaveSourcesForOtherPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		greedy := func(round uint16) *wire.Hello {
			h := &wire.Hello{Gathers: true, Heard: true, NoReply: true, First: 61000, Last: 61999}
			for i := range uint16(spread.MaxPorts) {
				h.Plan = append(h.Plan, 61100+(round*spread.MaxPorts+i)%800)
			}
			return h
		}
		a, b := devicetest.Pair(t, devicetest.Options{})
		wantSoon(t, a, b)
		h := greedy(0)
		h.Own, h.Peer = b.Outside(false), a.Outside(false)
		from := underlay.Endpoint{Dst: b.Outside(false)}
		planned := 0
		for round := range uint16(10) {
			h.Plan = greedy(round).Plan
			a.PeerOf(b.Public()).Hello(wire.AppendHello(nil, h), from)
			time.Sleep(time.Second)
			if a.PeerStatus(b).Spread.Planned {
				planned++
			}
		}
		if planned != 1 {
			t.Errorf("%d of 10 plans were followed, want the first", planned)
		}
		if !spreads(a, b)() {
			t.Error("plans that are not followed ended the spreading")
		}
	})
}

// TestHostilePlansLeaveSources has peers plan as many ports as they can. All others still spread.
func TestHostilePlansLeaveSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		hub := lan.Host(t, 1, devicetest.Options{})
		const hostile = 8
		for i := range hostile + 1 {
			p := lan.Host(t, byte(10+i), devicetest.Options{
				Plan: func(netip.AddrPort, *underlay.Endpoint, uint32, spread.Ports) (plan []uint16) {
					for k := range spread.MaxPorts {
						plan = append(plan, uint16(61100+i*spread.MaxPorts+k))
					}
					if i == hostile {
						return plan[:2]
					}
					return plan
				},
			})
			devicetest.Connect(hub, p)
			wantSoon(t, hub, p)
			if s := hub.PeerStatus(p).Spread; s.Ports < 2 || i == hostile && !s.Planned {
				t.Errorf("peer %d: got %+v, want its flows spread", i, s)
			}
		}
	})
}

// TestFlappingPeerDoesNotFloodTheLog: an authenticated peer changes its mind eight times a second.
func TestFlappingPeerDoesNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		wantSoon(t, a, b)
		h := wire.Hello{Gathers: true, NoReply: true, First: 61000, Last: 61999, Own: b.Outside(false), Peer: a.Outside(false)}
		for i := range 8 * 60 {
			h.Heard = i%2 == 0
			a.PeerOf(b.Public()).Hello(wire.AppendHello(nil, &h), underlay.Endpoint{Dst: b.Outside(false)})
			time.Sleep(time.Second / 8)
		}
		if n := strings.Count(log.String(), "msg=\"spread"); n > 20 {
			t.Errorf("%d lines in a minute", n)
		}
	})
}
