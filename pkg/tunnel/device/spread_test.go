// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// wiretap notes every datagram on a LAN, and may lose some.
type wiretap struct {
	mu   sync.Mutex
	seen []tapped
	lose func(tapped) bool
}

type tapped struct {
	from netip.AddrPort
	kind wire.Type
	size int
}

// keepalive tells whether it is one.
func (d tapped) keepalive() bool { return d.kind == wire.TypeData && d.size == wire.DataOverhead }

// probe tells whether it may be a path MTU probe: tests that use it carry smaller packets.
func (d tapped) probe() bool {
	return d.kind == wire.TypeData && d.size == wire.DataOverhead+tun.DefaultMTU
}

// request tells whether it may be a request for a report, or a probe from a source port: hellos and reports are larger.
func (d tapped) request() bool {
	return d.kind == wire.TypeData && d.size > wire.DataOverhead && d.size <= wire.DataOverhead+16
}

func (w *wiretap) filter(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
	kind, _ := wire.Classify(datagram)
	d := tapped{from: from, kind: kind, size: len(datagram)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, d)
	if w.lose != nil && w.lose(d) {
		return underlaytest.Drop
	}
	return underlaytest.Deliver
}

// count is how many datagrams of host n match.
func (w *wiretap) count(n byte, match func(tapped) bool) (count int) {
	v4, _ := devicetest.Addresses(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.seen {
		if d.from.Addr() == v4 && match(d) {
			count++
		}
	}
	return count
}

// sources returns the ports, other than the listen port, from which host n sent data.
func (w *wiretap) sources(n byte) map[uint16]int {
	ports := map[uint16]int{}
	w.count(n, func(d tapped) bool {
		if d.from.Port() != devicetest.ListenPort && !d.probe() {
			ports[d.from.Port()]++
		}
		return false
	})
	return ports
}

func (w *wiretap) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = nil
}

// tappedPair is two hosts on a LAN that is listened to.
func tappedPair(t *testing.T, w *wiretap, o devicetest.Options) (a, b *devicetest.Host) {
	lan := devicetest.NewLAN(w.filter)
	a, b = lan.Host(t, 1, o), lan.Host(t, 2, o)
	devicetest.Connect(a, b)
	return a, b
}

func spreads(a, b *devicetest.Host) func() bool {
	return func() bool { return a.PeerStatus(b).Spread.Active }
}

func bothSpread(t *testing.T, a, b *devicetest.Host) {
	t.Helper()
	a.Await("the initiator spreads", spreads(a, b))
	b.Await("the responder spreads", spreads(b, a))
}

func why(a, b *devicetest.Host, part string) func() bool {
	return func() bool {
		s := a.PeerStatus(b).Spread
		return !s.Active && strings.Contains(s.Reason, part)
	}
}

// flows sends one packet of each of n flows from a to b, which have been silent for long.
func flows(t *testing.T, a, b *devicetest.Host, n int) {
	t.Helper()
	time.Sleep(spread.DefaultGap)
	for i := range n {
		carries(t, a, b, false, 100+i)
		p := a.To(b, uint16(2000+i), false).UDP(make([]byte, 100))
		a.Send(flow.WithVnetHeader(p))
		if got := b.Next(); len(got) != 1 || !bytes.Equal(got[0], p) {
			t.Fatalf("flow %d: got %d packets", i, len(got))
		}
	}
}

func TestTwoDevicesExchangeHellosAndSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		talk(t, a, b)
		bothSpread(t, a, b)
		w.forget()
		for _, x := range []struct{ from, to *devicetest.Host }{{a, b}, {b, a}} {
			flows(t, x.from, x.to, 16)
			ports := w.sources(x.from.N)
			if len(ports) < 16 {
				t.Errorf("host %d sent 17 flows from %d ports", x.from.N, len(ports))
			}
			for port := range ports {
				if !spread.DefaultPorts.Contains(port) {
					t.Errorf("host %d sent from port %d", x.from.N, port)
				}
			}
			if got, want := x.to.PeerStatus(x.from).Endpoint.AddrPort, x.from.Outside(false); got != want {
				t.Errorf("host %d takes host %d to be at %v, want %v", x.to.N, x.from.N, got, want)
			}
		}
	})
}

// TestOnlyDataIsSpread runs for a while, with keepalives and a new handshake.
func TestOnlyDataIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		talk(t, a, b)
		bothSpread(t, a, b)
		for range 30 {
			time.Sleep(5 * time.Second)
			carries(t, a, b, false, 100)
		}
		bothSpread(t, a, b)
		for _, h := range []*devicetest.Host{a, b} {
			if n := w.count(h.N, func(d tapped) bool {
				return d.from.Port() != devicetest.ListenPort && (d.kind != wire.TypeData || d.keepalive())
			}); n != 0 {
				t.Errorf("host %d sent %d messages that are not data from other ports", h.N, n)
			}
			if h.AllDrops()[drop.HelloUnwanted.String()] != 0 {
				t.Errorf("host %d: %v", h.N, h.AllDrops())
			}
		}
		if n := w.count(a.N, func(d tapped) bool { return d.kind == wire.TypeInitiation }); n < 2 {
			t.Errorf("%d handshakes, want a second one", n)
		}
	})
}

// TestRekeySendsOneHelloEachWay: once both know each other, they say so once per handshake.
func TestRekeySendsOneHelloEachWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		for _, h := range []*devicetest.Host{a, b} { // few, so that answers to checks are small
			h.Apply(config.Device{Settings: config.Settings{SpreadPorts: &spread.Ports{First: 61000, Last: 61003}}})
		}
		talk(t, a, b)
		bothSpread(t, a, b)
		time.Sleep(119 * time.Second)
		w.forget()
		for range 3 {
			time.Sleep(2 * time.Second)
			carries(t, a, b, false, 500)
		}
		for _, h := range []*devicetest.Host{a, b} {
			isHello := func(d tapped) bool {
				return d.kind == wire.TypeData && !d.request() && !d.keepalive() && d.size > wire.DataOverhead+48 && d.size < wire.DataOverhead+wire.MaxHelloSize // reports of so few ports are smaller
			}
			if n := w.count(h.N, isHello); n != 1 {
				t.Errorf("host %d said hello %d times", h.N, n)
			}
		}
		if !spreads(a, b)() || !spreads(b, a)() {
			t.Error("a new session ended the spreading")
		}
	})
}

// TestStockPeerGetsNoHello covers a ropewalk with spread off, which behaves as a stock peer: it neither signs nor sends hellos.
func TestStockPeerGetsNoHello(t *testing.T) {
	for _, stockInitiates := range []bool{false, true} {
		t.Run(fmt.Sprintf("stock initiates %v", stockInitiates), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w wiretap
				a, b := tappedPair(t, &w, devicetest.Options{})
				off := config.SpreadOff
				b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
				if stockInitiates {
					talk(t, b, a)
				} else {
					talk(t, a, b)
				}
				time.Sleep(5 * time.Second)
				before := w.count(a.N, func(d tapped) bool { return d.kind == wire.TypeData && !d.keepalive() })
				if before != 1 {
					t.Errorf("%d data messages for one packet", before)
				}
				if len(w.sources(a.N)) != 0 {
					t.Errorf("sent from %v", w.sources(a.N))
				}
				a.Await("the reason is reported", why(a, b, "no hello"))
				if n := b.AllDrops(); len(n) != 0 {
					t.Errorf("the stock peer dropped %v", n)
				}
			})
		})
	}
}

// TestUnsignedInitiationStopsSpread: the peer was replaced by a stock one.
func TestUnsignedInitiationStopsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		talk(t, a, b)
		bothSpread(t, a, b)
		off := config.SpreadOff
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		time.Sleep(time.Second)
		b.PeerOf(a.Public()).Initiate()
		a.Await("it has stopped", why(a, b, "no hello"))
		w.forget()
		flows(t, a, b, 4)
		if len(w.sources(a.N)) != 0 {
			t.Errorf("sent from %v", w.sources(a.N))
		}
	})
}

// TestLostHellosAreRetransmitted drops the first hello in each direction from the listen port.
func TestLostHellosAreRetransmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := map[netip.AddrPort]int{}
		w := wiretap{lose: func(d tapped) bool {
			hello := d.kind == wire.TypeData && d.size > 2*wire.DataOverhead && d.size < 150 && d.from.Port() == devicetest.ListenPort
			if hello {
				lost[d.from]++
			}
			return hello && lost[d.from] == 1
		}}
		a, b := tappedPair(t, &w, devicetest.Options{})
		for _, x := range []struct{ from, to *devicetest.Host }{{a, b}, {b, a}} { // packets too large to be lost
			carries(t, x.from, x.to, false, 500)
		}
		bothSpread(t, a, b)
	})
}

// TestFirewallPreventsSpread drops all messages except those from the listen ports.
func TestFirewallPreventsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wiretap{lose: func(d tapped) bool { return d.from.Port() != devicetest.ListenPort }}
		a, b := tappedPair(t, &w, devicetest.Options{})
		talk(t, a, b)
		a.Await("the reason is reported", why(a, b, "firewall"))
		b.Await("the reason is reported", why(b, a, "firewall"))
		time.Sleep(10 * time.Second)
		w.forget()
		flows(t, a, b, 4)
		flows(t, b, a, 4)
		if n := len(w.sources(a.N)) + len(w.sources(b.N)); n != 0 {
			t.Errorf("data left from %d ports that do not get through", n)
		}
	})
}

// translated is the port of a host behind a NAT that maps every port to the one before.
type translated struct{ underlay.Port }

func (p translated) LocalPort() uint16 { return p.Port.LocalPort() + 1 }

func TestNATStopsSpreadAndIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		w := wiretap{}
		lan := devicetest.NewLAN(w.filter)
		o := devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}
		a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return translated{p} }})
		b := lan.Host(t, 2, o)
		devicetest.Connect(a, b)
		talk(t, a, b)
		a.Await("the reason is reported", why(a, b, "this host is behind a NAT: its address is 192.0.2.1:51821 locally, and 192.0.2.1:51820 at the other side"))
		b.Await("the reason is reported", why(b, a, "the peer is behind a NAT: its address is 192.0.2.1:51821 locally, and 192.0.2.1:51820 at the other side"))
		b.Await("it logs why", func() bool { return strings.Contains(log.String(), "behind a NAT") })
		time.Sleep(time.Second)
		w.forget()
		flows(t, a, b, 4)
		flows(t, b, a, 4)
		if n := len(w.sources(a.N)) + len(w.sources(b.N)); n != 0 {
			t.Errorf("data left from %d ports that the NAT does not know", n)
		}
	})
}

// lockedText is a strings.Builder for several goroutines.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSpreadOnStartsWithoutHello: towards a stock peer behind a gather program, say.
func TestSpreadOnStartsWithoutHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		on, off := config.SpreadOn, config.SpreadOff
		a.Apply(config.Device{Settings: config.Settings{Spread: &on, SpreadPorts: &spread.Ports{First: 7000, Last: 7003}}})
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		carries(t, a, b, false, 100)
		flows(t, a, b, 8)
		ports := w.sources(a.N)
		for port := range ports {
			if port < 7000 || port > 7003 {
				t.Errorf("sent from port %d", port)
			}
		}
		if len(ports) != 4 {
			t.Errorf("sent from %d ports, want 4", len(ports))
		}
	})
}

// TestPlannedPortsAreUsed checks that the sender uses the ports of the receiver's plan.
func TestPlannedPortsAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		plan := []uint16{61500, 61007, 61999}
		o := devicetest.Options{Plan: func(own netip.AddrPort, peer *underlay.Endpoint, mark uint32, candidates spread.Ports) []uint16 {
			if own.Port() != devicetest.ListenPort || mark != 7 || !peer.Dst.Addr().Is4() || candidates != spread.DefaultPorts {
				t.Errorf("asked to plan for %v from %v over %v", own, peer, candidates)
			}
			return plan
		}}
		lan := devicetest.NewLAN(w.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, o)
		mark := uint32(7)
		b.Apply(config.Device{FwMark: &mark})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		a.Await("the plan is followed", func() bool {
			s := a.PeerStatus(b).Spread
			return s.Planned && s.Ports == len(plan)
		})
		w.forget()
		flows(t, a, b, 9)
		ports := w.sources(a.N)
		for _, port := range plan {
			if ports[port] == 0 {
				t.Errorf("no flow left from port %d: %v", port, ports)
			}
			delete(ports, port)
		}
		if len(ports) != 0 {
			t.Errorf("flows left from %v as well", ports)
		}
	})
}

// TestHellosAreRateLimited floods a host with hellos of a peer that it has a session with.
func TestHellosAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		talk(t, a, b)
		bothSpread(t, a, b)
		time.Sleep(2 * time.Second)
		w.forget()
		hello := wire.AppendHello(nil, &wire.Hello{Gathers: true, Heard: true, First: 61000, Last: 61999})
		from := underlay.Endpoint{Dst: b.Outside(false)}
		const flood, seconds = 100_000, 10
		p := a.PeerOf(b.Public())
		unwanted := 0
		for range seconds {
			for range flood / seconds {
				if p.Hello(hello, from) == drop.HelloUnwanted {
					unwanted++
				}
			}
			time.Sleep(time.Second)
		}
		if unwanted < flood-10*seconds {
			t.Errorf("%d of %d hellos were refused", unwanted, flood)
		}
		if n := w.count(a.N, func(d tapped) bool { return d.kind == wire.TypeData }); n > 5*seconds {
			t.Errorf("%d answers in %d s", n, seconds)
		}
	})
}

func TestBadHellosAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		bothSpread(t, a, b)
		good := wire.AppendHello(nil, &wire.Hello{Gathers: true})
		future := bytes.Clone(good)
		future[4] = 99
		p := a.PeerOf(b.Public())
		for _, c := range []struct {
			hello []byte
			want  drop.Reason
		}{{good[:20], drop.HelloInvalid}, {future, drop.HelloVersion}} {
			time.Sleep(time.Second)
			if got := p.Hello(c.hello, underlay.Endpoint{Dst: b.Outside(false)}); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		}
		if !spreads(a, b)() {
			t.Error("a hello that is none ended the spreading")
		}
		off := config.SpreadOff
		a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		if got := p.Hello(good, underlay.Endpoint{Dst: b.Outside(false)}); got != drop.HelloUnwanted {
			t.Errorf("%v while spreading is off", got)
		}
	})
}

func TestSpreadPortsMustExcludeListenPort(t *testing.T) {
	a, _ := devicetest.Pair(t, devicetest.Options{})
	for _, ports := range []spread.Ports{{First: 51000, Last: 52000}, {First: 80, Last: 90}, {}} {
		if err := a.Configure(config.Device{Settings: config.Settings{SpreadPorts: &ports}}); err == nil {
			t.Errorf("range %v was taken", ports)
		}
	}
	listen := uint16(61500)
	a.Apply(config.Device{ListenPort: &listen})
	if got, want := a.Status().SpreadPorts, (spread.Ports{First: 61000, Last: 61499}); got != want {
		t.Errorf("spreads over %v with the listen port in the default range, want %v", got, want)
	}
}
