// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/sockets"
)

// portOf notes the port that a device has open.
type portOf struct {
	atomic.Pointer[underlaytest.Fake]
}

func (p *portOf) wrap(port underlay.Port) underlay.Port {
	p.Store(port.(*underlaytest.Fake))
	return port
}

func (p *portOf) selects(want underlay.Selection) func() bool {
	return func() bool { return inForce(p.Load(), want) }
}

func inForce(port *underlaytest.Fake, want underlay.Selection) bool {
	got := port.Selection()
	return got.Equal(&want)
}

func selectionOf(h *devicetest.Host) sockets.SelectionReport {
	return h.Stats().(device.Stats).Selection
}

// rangeOf is the selection without plans.
func rangeOf(ports spread.Ports) underlay.Selection {
	return underlay.Selection{First: ports.First, Last: ports.Last}
}

// fourPlans is a planner's answer that is neither in the order of the ports nor even by the range.
func fourPlans() []uint16 { return []uint16{61504, 61012, 61996, 61000} }

func plans(list ...uint16) device.Planner {
	return func(netip.AddrPort, *underlay.Endpoint, uint32, spread.Ports) []uint16 { return list }
}

// TestPlanIsInstalledBeforePeerLearnsIt recognizes the hello that bears a plan by its size. Who initiates answers the
// other's first hello at once.
func TestPlanIsInstalledBeforePeerLearnsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at portOf
		var plan []uint16
		for port := uint16(61990); len(plan) < 48; port -= 3 {
			plan = append(plan, port)
		}
		v4, _ := devicetest.Addresses(2)
		early, planned := atomic.Int32{}, atomic.Int32{}
		lan := devicetest.NewLAN(func(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if kind, _ := wire.Classify(datagram); from.Addr() == v4 && kind == wire.TypeData && len(datagram) > 2*len(plan)+80 {
				planned.Add(1)
				if len(at.Load().Selection().Plans) == 0 {
					early.Add(1)
				}
			}
			return underlaytest.Deliver
		})
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{Plan: plans(plan...), WrapPort: at.wrap})
		devicetest.Connect(a, b)
		talk(t, b, a)
		bothSpread(t, a, b)
		a.Await("the plan is followed", func() bool { return a.PeerStatus(b).Spread.Planned })
		if planned.Load() == 0 || early.Load() != 0 {
			t.Errorf("%d of %d hellos had a plan that was not installed", early.Load(), planned.Load())
		}
	})
}

func TestPlannedFlowsArriveAtPlannedLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = 4
		var at portOf
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{Lanes: lanes, Plan: plans(fourPlans()...), WrapPort: at.wrap})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		v4, _ := devicetest.Addresses(1)
		want := rangeOf(spread.DefaultPorts)
		want.Plans = []underlay.Plan{{From: v4, Ports: fourPlans()}}
		b.Await("the plan is in force", at.selects(want))
		if got := selectionOf(b); got != (sockets.SelectionReport{ByPort: true, Plans: 1, Wanted: 1}) {
			t.Errorf("reported as %+v", got)
		}
		a.Await("the plan is followed", func() bool { return a.PeerStatus(b).Spread.Planned })
		time.Sleep(2 * spread.DefaultGap)
		before := b.Stats().(device.Stats)
		for i := range 16 { // flows that begin together take one port after the other
			a.Send(flow.WithVnetHeader(a.To(b, uint16(2000+i), false).UDP(make([]byte, 100))))
		}
		b.Await("everything arrived", func() bool {
			return sum(arrived(b)) == sum(rxPackets(before))+16
		})
		for lane, n := range arrived(b) {
			if got := n - rxPackets(before)[lane]; got != 4 {
				t.Errorf("lane %d got %d of 16 flows on 4 ports, want 4", lane, got)
			}
		}
	})
}

func rxPackets(s device.Stats) (list []uint64) {
	for _, l := range s.Lanes {
		list = append(list, l.RxPackets)
	}
	return list
}

func arrived(h *devicetest.Host) []uint64 { return rxPackets(h.Stats().(device.Stats)) }

func sum(list []uint64) (n uint64) {
	for _, x := range list {
		n += x
	}
	return n
}

func TestSelectionFollowsTheConfiguration(t *testing.T) {
	var at portOf
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{WrapPort: at.wrap})
	expect := func(what string, want underlay.Selection, byPort bool, reason string) {
		t.Helper()
		h.Await(what, at.selects(want))
		if got := selectionOf(h); got.ByPort != byPort || !strings.Contains(got.Reason, reason) || (reason == "") != (got.Reason == "") {
			t.Errorf("%s: reported as %+v", what, got)
		}
	}
	expect("auto selects", rangeOf(spread.DefaultPorts), true, "")
	off, on := config.SpreadOff, config.SpreadOn
	h.Apply(config.Device{Settings: config.Settings{Spread: &off}})
	expect("off does not", underlay.Selection{}, false, "off")
	ports := spread.Ports{First: 7000, Last: 7999}
	h.Apply(config.Device{Settings: config.Settings{SpreadPorts: &ports}})
	expect("off still does not", underlay.Selection{}, false, "off")
	h.Apply(config.Device{Settings: config.Settings{Spread: &on}})
	expect("on does", rangeOf(ports), true, "")
	old, listen := at.Load(), uint16(12345)
	h.Apply(config.Device{ListenPort: &listen})
	if at.Load() == old {
		t.Fatal("the port is the same")
	}
	expect("so does another port", rangeOf(ports), true, "")
	h.Follow(tun.Event{})
	if got := selectionOf(h); got.ByPort || !strings.Contains(got.Reason, "down") {
		t.Errorf("down: reported as %+v", got)
	}
}

func TestRemovingPeerRemovesItsPlan(t *testing.T) {
	for name, end := range map[string]func(a, b *devicetest.Host){
		"removed":         func(a, b *devicetest.Host) { b.Apply(config.Device{ReplacePeers: true}) },
		"no longer plans": func(a, b *devicetest.Host) { time.Sleep(10 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at portOf
				lan := devicetest.NewLAN(nil)
				a := lan.Host(t, 1, devicetest.Options{})
				b := lan.Host(t, 2, devicetest.Options{Lanes: 2, Plan: plans(fourPlans()...), WrapPort: at.wrap})
				devicetest.Connect(a, b)
				talk(t, a, b)
				b.Await("the plan is in force", func() bool { return len(at.Load().Selection().Plans) == 1 })
				end(a, b)
				b.Await("it is not", at.selects(rangeOf(spread.DefaultPorts)))
			})
		})
	}
}

// TestPeerBehindNATGetsNoPlan: others may have its address, and it does not spread.
func TestPeerBehindNATGetsNoPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at portOf
		var planned atomic.Int32
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return translated{p} }})
		b := lan.Host(t, 2, devicetest.Options{WrapPort: at.wrap, Plan: func(netip.AddrPort, *underlay.Endpoint, uint32, spread.Ports) []uint16 {
			planned.Add(1)
			return fourPlans()
		}})
		devicetest.Connect(a, b)
		talk(t, a, b)
		b.Await("the reason is reported", func() bool { return strings.Contains(b.PeerStatus(a).Spread.Reason, "behind a NAT") })
		if want := rangeOf(spread.DefaultPorts); planned.Load() == 0 || !inForce(at.Load(), want) {
			t.Errorf("in force after %d plans: %+v", planned.Load(), at.Load().Selection())
		}
	})
}

// TestPeerPlansForItsOwnAddressOnly has a peer send hellos with another peer's address as forged outer source, before and after that peer
// connects.
func TestPeerPlansForItsOwnAddressOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		var at portOf
		hub := lan.Host(t, 1, devicetest.Options{Lanes: 4, WrapPort: at.wrap, Plan: func(_ netip.AddrPort, _ *underlay.Endpoint, _ uint32, c spread.Ports) []uint16 {
			return []uint16{c.First, c.First + 1, c.First + 2, c.First + 3}
		}})
		bad, good := lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		devicetest.Connect(hub, bad)
		talk(t, bad, hub) // before bad spreads: a later message may arrive at any lane of hub
		hub.Apply(config.Device{Peers: []config.Peer{good.AsPeer(false)}})
		from := underlay.Endpoint{Dst: good.Outside(false), Src: hub.Outside(false).Addr()}
		forge := func(seconds int) {
			for range seconds {
				hello := wire.Hello{Gathers: true, Heard: true, Own: from.Dst, Peer: hub.Outside(false), First: 61100, Last: 61103}
				hub.PeerOf(bad.Public()).Hello(wire.AppendHello(nil, &hello), from)
				time.Sleep(time.Second)
				for _, p := range at.Load().Selection().Plans {
					if p.From == from.Dst.Addr() && p.Ports[0] == 61100 {
						t.Fatal("the plan for the address of a peer is that of another one")
					}
				}
			}
		}
		forge(10)
		good.Apply(config.Device{Peers: []config.Peer{hub.AsPeer(false)}})
		talk(t, good, hub)
		forge(5)
		plans := at.Load().Selection().Plans
		if len(plans) != 1 || plans[0].From != from.Dst.Addr() {
			t.Errorf("got %+v, want the honest peer's plan", plans)
		}
	})
}

// TestPlanEndsWhenPeerRoams has a peer move. The plan for its former address holds no longer.
func TestPlanEndsWhenPeerRoams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at portOf
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{Lanes: 2, Plan: plans(fourPlans()...), WrapPort: at.wrap})
		devicetest.Connect(a, b)
		talk(t, a, b)
		b.Await("the plan is in force", func() bool { return len(at.Load().Selection().Plans) == 1 })
		b.PeerOf(a.Public()).Roam(underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.9:51820")})
		b.Await("it is not", at.selects(rangeOf(spread.DefaultPorts)))
	})
}

// TestPlanningIsRateLimitedPerPeer: each plan is work, and moves the flows of all that have the peer's address.
func TestPlanningIsRateLimitedPerPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 2 * 8 // the test may touch two minutes
		var planned atomic.Int32
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{Plan: func(_ netip.AddrPort, _ *underlay.Endpoint, _ uint32, c spread.Ports) []uint16 {
			planned.Add(1)
			return []uint16{c.First}
		}})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		for i := range uint16(50) {
			a.Apply(config.Device{Settings: config.Settings{SpreadPorts: &spread.Ports{First: 7000 + i, Last: 7999}}})
			time.Sleep(500 * time.Millisecond)
		}
		if n := planned.Load(); n < 4 || n > most {
			t.Errorf("%d plans for 50 changes in 25 seconds, want at most %d", n, most)
		}
		time.Sleep(3 * time.Minute) // a session later
		carries(t, a, b, false, 500)
		a.Await("it is planned for again", func() bool { return a.PeerStatus(b).Spread.Planned })
	})
}

// refusing is a port that could select, but does not.
type refusing struct {
	underlay.Port
	calls atomic.Int32
}

func (r *refusing) SetSelection(*underlay.Selection) (int, error) {
	r.calls.Add(1)
	return 0, errors.New("out of order")
}

func TestSelectionFailureIsLoggedOnceAndHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var port *refusing
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{
			Plan: plans(fourPlans()...), Log: slog.New(slog.NewTextHandler(&log, nil)),
			WrapPort: func(p underlay.Port) underlay.Port {
				port = &refusing{Port: p}
				return port
			},
		})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		flows(t, a, b, 8)
		if n := strings.Count(log.String(), "setting the reuseport program"); n != 1 || port.calls.Load() < 2 {
			t.Errorf("logged %d times in %d calls", n, port.calls.Load())
		}
		if got := selectionOf(b); got.ByPort || got.Reason != "out of order" || got.Wanted != 1 || got.Plans != 0 {
			t.Errorf("reported as %+v", got)
		}
	})
}

// standing is a port whose first selection stands.
type standing struct {
	*underlaytest.Fake
	calls atomic.Int32
}

func (s *standing) SetSelection(next *underlay.Selection) (int, error) {
	if s.calls.Add(1) > 1 {
		return 0, underlay.ErrSelectionFixed
	}
	return s.Fake.SetSelection(next)
}

// TestFixedSelectionIsKeptAndReported: the range chooses lanes then, whatever is planned.
func TestFixedSelectionIsKeptAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var port *standing
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{
			Lanes: 4, Plan: plans(fourPlans()...), Log: slog.New(slog.NewTextHandler(&log, nil)),
			WrapPort: func(p underlay.Port) underlay.Port {
				port = &standing{Fake: p.(*underlaytest.Fake)}
				return port
			},
		})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		a.Await("the plan is followed all the same", func() bool { return a.PeerStatus(b).Spread.Planned })
		if want := rangeOf(spread.DefaultPorts); !inForce(port.Fake, want) {
			t.Errorf("in force: %+v", port.Selection())
		}
		if got := selectionOf(b); !got.ByPort || got.Plans != 0 || got.Wanted != 1 || got.Reason == "" {
			t.Errorf("reported as %+v", got)
		}
		off := config.SpreadOff
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		if n := strings.Count(log.String(), "changing the reuseport program (classic BPF) is unsafe"); n != 1 && n != 2 || strings.Contains(log.String(), "level=WARN") {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
	})
}

// TestPortWithoutSelectionStillWorks: neither can one that a test puts something before.
func TestPortWithoutSelectionStillWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{
			Plan: plans(fourPlans()...), WrapPort: func(p underlay.Port) underlay.Port { return struct{ underlay.Port }{p} },
		})
		talk(t, a, b)
		bothSpread(t, a, b)
		flows(t, a, b, 8)
		if got := selectionOf(b); got.ByPort || got.Reason == "" {
			t.Errorf("reported as %+v", got)
		}
	})
}
