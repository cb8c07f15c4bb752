// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// handedOn is a's state as another process gets it.
func handedOn(t *testing.T, a *devicetest.Host) *device.State {
	t.Helper()
	s, err := a.Leave(nil)
	if err != nil {
		t.Fatal(err)
	}
	return passedOn(t, s)
}

// passedOn returns a state as another process gets it.
func passedOn(t *testing.T, s *device.State) *device.State {
	t.Helper()
	text, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if s, err = device.ParseState(text); err != nil {
		t.Fatal(err)
	}
	return s
}

// countersOf are the counters of a device that has left, as another process gets them.
func countersOf(t *testing.T, a *devicetest.Host) *device.Counters {
	t.Helper()
	c := a.Retire()
	text, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if c, err = device.ParseCounters(text); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDeviceResumesFromSavedState wants a session without anybody sending first, and counters that go on.
func TestDeviceResumesFromSavedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		before, stats := a.PeerStatus(b), a.Stats().(device.Stats)
		s := handedOn(t, a)
		if _, err := a.Leave(nil); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("left twice: %v", err)
		}
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		if err := c.Resume(s); err != nil {
			t.Fatal(err)
		}
		c.Key = a.Key
		counters := countersOf(t, a)
		c.AddCounters(counters)
		wantCountersOf(t, counters, c)
		c.Start()
		c.Await("a handshake without traffic", func() bool {
			return c.Stats().(device.Stats).Handshakes.Completed > stats.Handshakes.Completed
		})
		synctest.Wait() // until a keepalive has confirmed the session
		carries(t, b, c, false, 100)
		carries(t, c, b, false, 100)
		after := c.PeerStatus(b)
		if after.RxBytes <= before.RxBytes || after.TxBytes <= before.TxBytes {
			t.Errorf("counters do not go on: %+v, then %+v", before, after)
		}
		if got, want := c.Status(), s.ListenPort; got.ListenPort != want || got.PrivateKey != a.Key.Clamp() || after.Endpoint != before.Endpoint {
			t.Errorf("port %d, want %d; endpoint %v, want %v", got.ListenPort, want, after.Endpoint, before.Endpoint)
		}
	})
}

// wantCountersOf wants the counters of a resumed device, not started yet, to equal those of the previous device.
func wantCountersOf(t *testing.T, s *device.Counters, c *devicetest.Host) {
	t.Helper()
	now := c.Stats().(device.Stats)
	if diff := cmp.Diff(s.Stats.Lanes, now.Lanes, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("lanes: %s", diff)
	}
	if now.Handshakes != s.Handshakes || now.Handshakes == (device.HandshakeStats{}) {
		t.Errorf("handshakes: %+v, want %+v", now.Handshakes, s.Handshakes)
	}
	was, is := s.Peers[0].Traffic, c.Status().Peers[0]
	want := [...]uint64{was.RxBytes, was.TxBytes, was.Packets.Rx, was.Packets.Tx, was.Packets.RxDrops, was.Packets.TxDrops}
	if got := [...]uint64{is.RxBytes, is.TxBytes, is.Packets.Rx, is.Packets.Tx, is.Packets.RxDrops, is.Packets.TxDrops}; got != want || was.RxBytes == 0 {
		t.Errorf("the peer's traffic: %d, want %d", got, want)
	}
}

// TestResumedDeviceRejectsReplayedInitiations checks that the saved state prevents replays of old initiations.
func TestResumedDeviceRejectsReplayedInitiations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen messages
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b) // a initiates
		old, from := seen.latest(wire.TypeInitiation), underlay.Endpoint{Dst: a.Outside(false)}
		if s := handedOn(t, a); s.Peers[0].LastSent == (device.Timestamp{}) {
			t.Error("the timestamp of the last initiation is not known")
		}
		c := resumed(t, lan, handedOn(t, b), 2, devicetest.Options{})
		if r := c.Handshake(old, from); r != drop.None {
			t.Fatal(r)
		}
		if got := c.StepHandshakes(); len(got) != 1 || got[0] != drop.HSReplay {
			t.Errorf("an initiation of before: %v", got)
		}
	})
}

// resumed is another host n that has gone on and is up. Nobody works at it but its lanes.
func resumed(t *testing.T, lan devicetest.LAN, s *device.State, n byte, o devicetest.Options) *devicetest.Host {
	t.Helper()
	o.Stop = true
	c := lan.Host(t, n, o)
	if err := c.Resume(s); err != nil {
		t.Fatal(err)
	}
	followUp(t, c)
	return c
}

// followUp has a device that was not started carry packets.
func followUp(t *testing.T, c *devicetest.Host) {
	t.Helper()
	c.Follow(tun.Event{Up: true, MTU: 1420})
	t.Cleanup(c.Shut)
}

// TestResumedDeviceKeepsHelloState: there is spreading, and a plan, before the peer has said anything to the other device.
func TestResumedDeviceKeepsHelloState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at portOf
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{Plan: plans(fourPlans()...)})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		bothSpread(t, a, b)
		b.Await("the plan is followed", func() bool { return b.PeerStatus(a).Spread.Planned })
		c := resumed(t, lan, handedOn(t, a), 1, devicetest.Options{WrapPort: at.wrap})
		if got := c.PeerStatus(b).Spread; !got.Active {
			t.Errorf("%+v", got)
		}
		v4, _ := devicetest.Addresses(2)
		want := rangeOf(spread.DefaultPorts)
		want.Plans = []underlay.Plan{{From: v4, Ports: fourPlans()}}
		if !inForce(at.Load(), want) {
			t.Errorf("lanes are chosen by %+v", at.Load().Selection())
		}
	})
}

// TestResumedDeviceKeepsPathMTU has a path that drops silently what is too large, and a packet that waits for the session.
func TestResumedDeviceKeepsPathMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > 1400 }}
		lan := devicetest.NewLAN(w.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		converse(t, a, b, 60)
		wantPathMTU(t, a, b, 1400, 1328)
		c := resumed(t, lan, handedOn(t, a), 1, devicetest.Options{})
		if got := c.PeerStatus(b).PathMTU; got.Bytes != 1400 || got.InnerBytes != 1328 {
			t.Errorf("got %+v, want 1400, and 1328 inside, before any probe", got)
		}
	})
}

// busyPort is a port whose lanes, on request, are busy with received messages until it is closed.
type busyPort struct {
	underlay.Port
	busy   atomic.Bool
	closed chan struct{}
}

func (p *busyPort) Lane(i int) underlay.Lane { return busyLane{p.Port.Lane(i), p} }

func (p *busyPort) Close() error {
	close(p.closed)
	return p.Port.Close()
}

type busyLane struct {
	underlay.Lane
	port *busyPort
}

func (l busyLane) Recv(rx []underlay.Datagrams) (int, error) {
	n, err := l.Lane.Recv(rx)
	if l.port.busy.Load() {
		<-l.port.closed
	}
	return n, err
}

func TestHandoverSendsPacketsAlreadyRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var port *busyPort
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
			port = &busyPort{Port: p, closed: make(chan struct{})}
			return port
		}})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		time.Sleep(time.Minute) // no other message is in flight
		port.busy.Store(true)
		last := b.To(a, 7, false).UDP([]byte("last"))
		b.Send(flow.WithVnetHeader(last))
		synctest.Wait()
		handedOn(t, a)
		got := make([]byte, tun.MaxTrain)
		if n := a.TUN.TryReceive(0, got); n == 0 || !bytes.HasSuffix(got[:n], last) {
			t.Errorf("%d bytes have arrived; drops: %v", n, a.AllDrops())
		}
	})
}

// latePort is a port that takes time to open. All peers but one start when awaited is closed.
type latePort struct {
	switched
	first   netip.AddrPort // the endpoint of that one
	awaited chan struct{}
}

func (l *latePort) EndpointAdded(a config.Endpoint) {
	if a.AddrPort != l.first {
		<-l.awaited
	}
}

// TestPacketsThatWaitBeforeStartAreSent has packets in the TUN's queue, as after the pause of an upgrade.
func TestPacketsThatWaitBeforeStartAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		b, other := lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		awaited := make(chan struct{})
		defer close(awaited)
		a := lan.Host(t, 1, devicetest.Options{Stop: true, WrapPort: func(p underlay.Port) underlay.Port {
			time.Sleep(time.Second)
			return &latePort{switched{Fake: p.(*underlaytest.Fake)}, b.Outside(false), awaited}
		}})
		devicetest.Connect(a, b)
		devicetest.Connect(a, other)
		waits := a.To(b, 7, false).UDP([]byte("waits"))
		a.Send(flow.WithVnetHeader(waits))
		a.Start()
		if got := b.Next(); len(got) != 1 || !bytes.Equal(got[0], waits) {
			t.Errorf("got %d packets; drops: %v", len(got), a.AllDrops())
		}
	})
}

// keptPort is a port that rejects changes while it is kept for a handover.
type keptPort struct {
	*underlaytest.Fake
	kept atomic.Bool
}

func (k *keptPort) SetSelection(s *underlay.Selection) (int, error) {
	if k.kept.Load() {
		return 0, net.ErrClosed
	}
	return k.Fake.SetSelection(s)
}

func TestHandoverKeepsLaneSelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var port *keptPort
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{
			Plan: plans(fourPlans()...), Log: slog.New(slog.NewTextHandler(&log, nil)),
			WrapPort: func(p underlay.Port) underlay.Port {
				port = &keptPort{Fake: p.(*underlaytest.Fake)}
				return port
			},
		})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		b.Await("the plan is followed", func() bool { return b.PeerStatus(a).Spread.Planned })
		port.kept.Store(true)
		handedOn(t, a)
		if text := log.String(); strings.Contains(text, "level=WARN") {
			t.Error(text)
		}
	})
}

// TestResumeIgnoresSessionsEndedBefore: those of an interface that is down.
func TestResumeIgnoresSessionsEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		a.TUN.SetUp(false)
		a.Await("it is down", func() bool { return !a.Up() })
		if s := handedOn(t, a); s.Peers[0].Hello != nil {
			t.Errorf("handed on: %+v", s.Peers[0].Hello)
		}
	})
}

// TestTimestampsIncreaseWhenClockGoesBack covers a clock that went back: peers reject an initiation that is not later than the last.
func TestTimestampsIncreaseWhenClockGoesBack(t *testing.T) {
	now := time.Unix(1_700_000_000, 999_999_999)
	for _, back := range []time.Duration{-time.Hour, 0, time.Nanosecond, time.Hour, 100 * 365 * 24 * time.Hour} {
		a, b := devicetest.Pair(t, devicetest.Options{Stop: true})
		before, after := a.PeerOf(b.Public()), b.PeerOf(a.Public())
		var last noise.Timestamp
		for range 100 {
			last = before.Sign(now)
		}
		after.Earlier(last)
		if next := after.Sign(now.Add(-back)); !next.After(last.Signed()) {
			t.Errorf("%v back: %x, after %x", back, next, last)
		}
	}
}

func TestOnlyNewDeviceResumes(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{})
	s := handedOn(t, a)
	if err := b.Resume(s); err == nil {
		t.Error("a device that runs has resumed")
	}
}

// TestHandoverAcceptsEveryConfiguration has settings that Configure accepts, one after the other. They must not prevent an upgrade.
func TestHandoverAcceptsEveryConfiguration(t *testing.T) {
	mapped := config.AllowedIP{Prefix: netip.MustParsePrefix("::ffff:10.0.0.0/104")}
	within := uint16(devicetest.ListenPort + 5)
	for name, changes := range map[string][]config.Device{
		"a peer with the zero key":    {{Peers: []config.Peer{{}}}}, // for which no handshake is possible
		"a prefix of mapped IPv4":     {{Peers: []config.Peer{{PublicKey: noise.PublicKey{1}, AllowedIPs: []config.AllowedIP{mapped}}}}},
		"a port between spread ports": {{Settings: config.Settings{SpreadPorts: &spread.Ports{First: within - 1, Last: within + 1}}}, {ListenPort: &within}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := devicetest.NewLAN(nil)
				a := lan.Host(t, 1, devicetest.Options{})
				for _, c := range changes {
					a.Apply(c)
				}
				before := a.Status()
				c := resumed(t, lan, handedOn(t, a), 1, devicetest.Options{})
				if diff := cmp.Diff(before, c.Status(), cmpopts.EquateComparable(netip.Prefix{}, netip.AddrPort{}, netip.Addr{})); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestParseCountersIgnoresUnknownMembers: another release may have more of them. In a state they would be lost, and are an error.
func TestParseCountersIgnoresUnknownMembers(t *testing.T) {
	c, err := device.ParseCounters([]byte(`{"peers":[],"stats":{"drops":{"replay":3},"later":{"x":1}},"handshakes":{"initiated":2,"later":1},"later":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Stats.Drops["replay"] != 3 || c.Handshakes.Initiated != 2 {
		t.Errorf("%v, %+v", c.Stats.Drops, c.Handshakes)
	}
	for _, text := range []string{`{}`, `{"stats":{"drops":{}},"handshakes":{"initiated":"2"}}`, ``} {
		if _, err := device.ParseCounters([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	if _, err := device.ParseState([]byte(`{"peers":[],"later":1}`)); err == nil {
		t.Error("a state with an unknown member is taken")
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"peers":[]}`))
	f.Add([]byte(`{"private_key":"AA=="}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := device.ParseState(text)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := device.ParseState(again); err != nil {
			t.Fatalf("%v: %s", err, again)
		}
	})
}

// TestHandoverOfDownDevicePassesSessionsOn: it was asked for them before it began with them.
func TestHandoverOfDownDevicePassesSessionsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		if err := c.Resume(handedOn(t, a)); err != nil {
			t.Fatal(err)
		}
		c.TUN.SetUp(false)
		c.Start()
		if s := handedOn(t, c); s.Peers[0].Hello == nil {
			t.Error("its session is not known")
		}
	})
}

// deafening loses so many responses.
type deafening struct {
	timeline
	lose atomic.Int32
}

func (d *deafening) filter(from, to netip.AddrPort, datagram []byte) underlaytest.Verdict {
	verdict := d.timeline.filter(from, to, datagram)
	if kind, _ := wire.Classify(datagram); kind == wire.TypeResponse && d.lose.Add(-1) >= 0 {
		return underlaytest.Drop
	}
	return verdict
}

// TestResumedDeviceRetriesHandshake: it tries again before its timers would, at first soon, until it is answered, and not for ever.
func TestResumedDeviceRetriesHandshake(t *testing.T) {
	steps := []time.Duration{0, 60 * time.Millisecond, 310 * time.Millisecond, 1060 * time.Millisecond, 3060 * time.Millisecond}
	for lost, want := range map[int32][]time.Duration{0: steps[:1], 2: steps[:3], 100: steps} {
		synctest.Test(t, func(t *testing.T) {
			l := &deafening{}
			l.lan = devicetest.NewLAN(l.filter)
			a, b := l.lan.Host(t, 1, devicetest.Options{}), l.lan.Host(t, 2, devicetest.Options{})
			devicetest.Connect(a, b)
			talk(t, a, b)
			time.Sleep(time.Second)
			s := handedOn(t, a)
			c := l.lan.Host(t, 1, devicetest.Options{Stop: true})
			if err := c.Resume(s); err != nil {
				t.Fatal(err)
			}
			l.forget()
			l.lose.Store(lost)
			c.Start()
			time.Sleep(8 * time.Second) // the timers' own retry comes 5 s after the last
			var at []time.Duration
			sent := l.take(1, initiations)
			for _, moment := range sent {
				at = append(at, moment.Sub(sent[0]))
			}
			if diff := cmp.Diff(want, at); diff != "" {
				t.Errorf("%d responses lost, initiations: %s", lost, diff)
			}
			completed := c.Stats().(device.Stats).Handshakes.Completed
			if answered := lost < 100; (completed == 1) != answered {
				t.Errorf("%d responses lost: %d handshakes are complete", lost, completed)
			}
		})
	}
}
