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
		w.count(a.N, func(d tapped) bool {
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

// TestRequestsNeedDataAndPeerThatAnswers counts the small messages from the listen port.
func TestRequestsNeedDataAndPeerThatAnswers(t *testing.T) {
	for name, old := range map[string]bool{"peer that answers no probes": true, "peer that answers": false} {
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
				w.forget()
				for range 200 {
					burst(a, b)
				}
				if n := w.count(a.N, tapped.request); (n == 0) != old || n > 8 {
					t.Errorf("with data: got %d requests in 2 s", n)
				}
				time.Sleep(2 * time.Second)
				w.forget()
				time.Sleep(time.Hour)
				if n := w.count(a.N, tapped.request); n != 0 {
					t.Errorf("without data: got %d requests, want none", n)
				}
			})
		})
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
			lasts := 4 * time.Second // blocked ports are tested after one second, two and four
			if firewall {
				lasts = 2 * time.Second
			}
			for start := time.Now(); time.Since(start) < lasts; {
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

// TestSparseTrafficFallsBack sends single packets through a firewall that drops what host 1 sends from source ports. They are too few to be
// tested often, so it is noticed when nothing has answered for 15 seconds, after
// a keepalive for what had arrived before.
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
				var first time.Time
				for range max(30, int(time.Minute/pause)) {
					if time.Sleep(pause); first.IsZero() {
						first = time.Now()
					}
					if late := time.Since(first) > 30*time.Second; !arrived.ping(a, b) && late {
						t.Errorf("a packet is lost after %v", time.Since(first))
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
		for range 70 { // so often that the flow keeps its port
			time.Sleep(240 * time.Millisecond)
			arrived.ping(a, b)
		}
		if got, want := a.PeerStatus(b).Spread.Blocked, []uint16{uint16(blocked.Load())}; !slices.Equal(got, want) || !arrived.ping(a, b) {
			t.Errorf("got ports %v blocked, want %v, and the flow moved", got, want)
		}
	})
}

// TestReceiverOpensForgetfulFirewall has a firewall come that admits only replies to host 2 and knows no flow. Host 2 sends nothing but
// answers to requests, the last of them just before the firewall comes. Its keepalive must follow after 10 s, as from any WireGuard. A request
// that was lost just before then costs its time limit, so the flows have some seconds.
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
		request := wire.AppendProbe(nil, &wire.Probe{Kind: wire.ProbeRequest, Size: wire.MinProbeSize})
		if got := b.PeerOf(a.Public()).Hello(request, underlay.Endpoint{Dst: a.Outside(false)}); got != drop.None {
			t.Fatal(got)
		}
		synctest.Wait() // for the answer
		blocked.Store(true)
		for start := time.Now(); arrived.of(a, b) != 16; time.Sleep(90 * time.Millisecond) {
			if time.Since(start) > 15*time.Second {
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
