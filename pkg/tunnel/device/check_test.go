// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// arrivals notes the flows that arrive at a host.
type arrivals struct {
	mu    sync.Mutex
	flows map[uint16]bool
}

func watchArrivals(t *testing.T, h *devicetest.Host) *arrivals {
	a := &arrivals{flows: map[uint16]bool{}}
	h.Watch(func(_ int, train []byte) {
		packets, err := flow.Packets(train)
		if err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, p := range packets {
			a.flows[binary.BigEndian.Uint16(p[20:])] = true
		}
	})
	return a
}

// of sends one burst and returns how many of its flows arrive.
func (a *arrivals) of(from, to *devicetest.Host) int {
	a.mu.Lock()
	clear(a.flows)
	a.mu.Unlock()
	burst(from, to)
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.flows)
}

// TestBlockedPortFallsBackAlone drops what host 1 sends from one source port.
func TestBlockedPortFallsBackAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var blocked atomic.Uint32
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool { return d.from == netip.AddrPortFrom(v4, uint16(blocked.Load())) }}
		a, b := tappedPair(t, &w, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		wantSoon(t, a, b)
		arrived := watchArrivals(t, b)
		w.forget()
		arrived.of(a, b)
		port := uint16(0)
		w.count(a.N, func(d tapped) bool { // not of a check: that may be of a port in use before
			if d.size > 500 && !d.probe() {
				port = max(port, d.from.Port())
			}
			return false
		})
		blocked.Store(uint32(port))
		for range 120 {
			arrived.of(a, b)
		}
		w.forget()
		n, sources := arrived.of(a, b), w.sources(a.N)
		if got := a.PeerStatus(b).Spread.Blocked; n != 16 || len(sources) != 15 || sources[port] != 0 || !slices.Equal(got, []uint16{port}) {
			t.Errorf("%d flows arrive, data leaves from %v, status has %v blocked, want all but %d in use", n, sources, got, port)
		}
		if !strings.Contains(log.String(), "the path drops messages from some spread source ports") {
			t.Errorf("the log has\n%s", log.String())
		}
		blocked.Store(0)
		for range 200 {
			arrived.of(a, b)
		}
		if got := a.PeerStatus(b).Spread.Blocked; got != nil {
			t.Errorf("got %v blocked, want none", got)
		}
	})
}

// TestChecksNeedDataAndPeerThatAnswers counts the small messages from source ports.
func TestChecksNeedDataAndPeerThatAnswers(t *testing.T) {
	const checkSize = wire.DataOverhead + 16
	for name, old := range map[string]bool{"peer of an earlier version": true, "peer that answers": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := wiretap{}
				a, b := tappedPair(t, &w, devicetest.Options{})
				wantSoon(t, a, b)
				drain(t, b)
				if old {
					a.PeerOf(b.Public()).Hello(wire.AppendHello(nil, &wire.Hello{
						Gathers: true, Heard: true, NoReply: true, First: 61000, Last: 61999, Own: b.Outside(false), Peer: a.Outside(false),
					}), underlay.Endpoint{Dst: b.Outside(false)})
					time.Sleep(time.Second)
				}
				checks := func() int {
					return w.count(a.N, func(d tapped) bool { return d.size == checkSize && d.from.Port() != devicetest.ListenPort })
				}
				w.forget()
				for range 100 {
					burst(a, b)
				}
				if n := checks(); (n == 0) != old {
					t.Errorf("with data: got %d checks from source ports", n)
				}
				time.Sleep(time.Second)
				w.forget()
				time.Sleep(9 * time.Second)
				if n := checks(); n != 0 {
					t.Errorf("without data: got %d checks, want none", n)
				}
			})
		})
	}
}

func TestMalformedCheckIsCounted(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{})
	p := a.PeerOf(b.Public())
	for text, want := range map[string]drop.Reason{"\x00rwc": drop.HelloInvalid, "\x00rwc\x02": drop.HelloVersion} {
		if got := p.Hello([]byte(text), underlay.Endpoint{Dst: b.Outside(false)}); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	for _, answer := range []bool{false, true} {
		m := wire.AppendCheck(nil, &wire.Check{Answer: answer, Source: wire.ListenPortSource})
		refused := 0
		for range 20 {
			if p.Hello(m, underlay.Endpoint{Dst: b.Outside(false)}) == drop.HelloUnwanted {
				refused++
			}
		}
		if refused == 0 {
			t.Errorf("answer %v: 20 at once are all taken", answer)
		}
	}
}

// TestFirewallDuringSessionMovesFlowsToListenPort has a firewall come that drops what host 1 sends from source ports, and go again.
func TestFirewallDuringSessionMovesFlowsToListenPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var blocked atomic.Bool
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool {
			return blocked.Load() && d.from.Addr() == v4 && d.from.Port() != devicetest.ListenPort
		}}
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		arrived := watchArrivals(t, b)
		for _, firewall := range []bool{false, true, false} {
			blocked.Store(firewall)
			for start := time.Now(); time.Since(start) < 2*time.Second; {
				n := arrived.of(a, b)
				if late := time.Since(start) > 1100*time.Millisecond; n != 16 && (late || !firewall) {
					t.Fatalf("firewall %v: %d of 16 flows arrive after %v", firewall, n, time.Since(start))
				}
			}
			w.forget()
			arrived.of(a, b)
			if n := len(w.sources(a.N)); (n == 0) != firewall {
				t.Errorf("firewall %v: data leaves from %d source ports", firewall, n)
			}
		}
	})
}

// ping sends one packet of one flow and reports whether it arrives.
func (a *arrivals) ping(from, to *devicetest.Host) bool {
	a.mu.Lock()
	clear(a.flows)
	a.mu.Unlock()
	from.Send(flow.WithVnetHeader(from.To(to, 4000, false).UDP(make([]byte, 64))))
	time.Sleep(10 * time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.flows) == 1
}

// TestSparseTrafficFallsBack sends single packets through a firewall that drops what host 1 sends from source ports.
func TestSparseTrafficFallsBack(t *testing.T) {
	for _, pause := range []time.Duration{time.Second, 5 * time.Second, time.Minute} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var firewall atomic.Bool
				v4, _ := devicetest.Addresses(1)
				w := wiretap{lose: func(d tapped) bool {
					return firewall.Load() && d.from.Addr() == v4 && d.from.Port() != devicetest.ListenPort
				}}
				a, b := tappedPair(t, &w, devicetest.Options{})
				wantSoon(t, a, b)
				arrived := watchArrivals(t, b)
				firewall.Store(true)
				for n := range 10 {
					if time.Sleep(pause); !arrived.ping(a, b) && n > 1 {
						t.Errorf("packet %d is lost", n)
					}
				}
				if n := arrived.of(a, b); n != 16 { // on ports that had no packets yet
					t.Errorf("%d of 16 other flows arrive", n)
				}
			})
		})
	}
}

// TestSparseTrafficBlocksOnlyItsPort has a path that drops one port, the only one that data leaves from.
func TestSparseTrafficBlocksOnlyItsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var blocked atomic.Uint32
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool { return d.from == netip.AddrPortFrom(v4, uint16(blocked.Load())) }}
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		arrived := watchArrivals(t, b)
		time.Sleep(10 * time.Second)
		w.forget()
		arrived.ping(a, b)
		for port := range w.sources(a.N) {
			blocked.Store(uint32(port))
		}
		time.Sleep(3 * time.Second)
		arrived.ping(a, b)
		time.Sleep(3 * time.Second)
		if got, want := a.PeerStatus(b).Spread.Blocked, []uint16{uint16(blocked.Load())}; !slices.Equal(got, want) || !arrived.ping(a, b) {
			t.Errorf("got ports %v blocked, want %v, and the flow moved", got, want)
		}
	})
}

// TestReceiverOpensForgetfulFirewall has a firewall come that admits only replies to host 2 and knows no flow. Host 2 sends nothing but
// answers to checks, the last of them just before the firewall comes. Its keepalive must follow, as from any WireGuard.
func TestReceiverOpensForgetfulFirewall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var blocked, open atomic.Bool
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool {
			listening := d.from.Port() == devicetest.ListenPort
			if d.from.Addr() != v4 {
				open.Store(open.Load() || blocked.Load() && listening)
				return false
			}
			return blocked.Load() && (!open.Load() || !listening)
		}}
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		arrived := watchArrivals(t, b)
		arrived.of(a, b)
		check := wire.AppendCheck(nil, &wire.Check{Source: wire.ListenPortSource})
		if got := b.PeerOf(a.Public()).Hello(check, underlay.Endpoint{Dst: a.Outside(false)}); got != drop.None {
			t.Fatal(got)
		}
		synctest.Wait() // for the answer
		blocked.Store(true)
		for start := time.Now(); arrived.of(a, b) != 16; time.Sleep(90 * time.Millisecond) {
			if time.Since(start) > 12*time.Second {
				t.Fatalf("the firewall is open: %v, but not all flows arrive", open.Load())
			}
		}
	})
}

// TestResumedDeviceKeepsBlockedPorts has a firewall that drops what host 1 sends from source ports, before and after an upgrade in place.
func TestResumedDeviceKeepsBlockedPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var firewall atomic.Bool
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool {
			return firewall.Load() && d.from.Addr() == v4 && d.from.Port() != devicetest.ListenPort
		}}
		lan := devicetest.NewLAN(w.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		wantSoon(t, a, b)
		arrived := watchArrivals(t, b)
		firewall.Store(true)
		for range 200 {
			arrived.of(a, b)
		}
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		if err := c.Resume(handedOn(t, a)); err != nil {
			t.Fatal(err)
		}
		c.Key = a.Key
		c.Start()
		c.Await("a session", func() bool { return c.Stats().(device.Stats).Handshakes.Completed > 0 })
		if n := arrived.of(c, b); n != 16 {
			t.Errorf("%d of 16 flows arrive after the upgrade", n)
		}
		firewall.Store(false)
		for range 200 {
			arrived.of(c, b)
		}
		if got := c.PeerStatus(b).Spread; !got.Active || got.Blocked != nil {
			t.Errorf("without a firewall: %+v", got)
		}
	})
}

// TestBlockedPortsAreNotProbed has a firewall that drops what host 1 sends from source ports: path MTU probes from there tell nothing, and
// would keep the listen port, from which all data leaves, from its turn.
func TestBlockedPortsAreNotProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var blocked atomic.Bool
		v4, _ := devicetest.Addresses(1)
		w := wiretap{lose: func(d tapped) bool {
			return blocked.Load() && d.from.Addr() == v4 && d.from.Port() != devicetest.ListenPort
		}}
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		drain(t, b)
		seconds := func(n int) {
			for range 5 * n {
				burst(a, b)
				drain(t, b)
				time.Sleep(190 * time.Millisecond)
			}
		}
		blocked.Store(true)
		seconds(20)
		w.forget()
		seconds(60)
		elsewhere := w.count(a.N, func(d tapped) bool { return d.probe() && d.from.Port() != devicetest.ListenPort })
		all := w.count(a.N, tapped.probe)
		if elsewhere != 0 || all < 4 {
			t.Errorf("in a minute %d probes leave from blocked ports, and %d from the listen port, want none, and one per 10 s", elsewhere, all-elsewhere)
		}
	})
}
