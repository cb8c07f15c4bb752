// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"crypto/rand"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestEndpointFollowsDataKeepalivesAndHandshakes(t *testing.T) {
	for name, speak := range map[string]func(*testing.T, *devicetest.Host, *devicetest.Host){
		"data":      func(t *testing.T, a, b *devicetest.Host) { carries(t, b, a, false, 100) },
		"handshake": func(_ *testing.T, a, b *devicetest.Host) { b.PeerOf(a.Public()).Initiate() },
		"keepalive": func(_ *testing.T, a, b *devicetest.Host) {
			every := uint16(10)
			b.Apply(config.Device{Peers: []config.Peer{{PublicKey: a.Public(), Keepalive: &every}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := devicetest.Pair(t, devicetest.Options{})
				talk(t, a, b)
				time.Sleep(20 * time.Second) // no keepalive is owed
				port := uint16(4242)
				b.Apply(config.Device{ListenPort: &port})
				speak(t, a, b)
				a.Await("it has followed", func() bool {
					return a.PeerStatus(b).Endpoint.AddrPort == b.Outside(false)
				})
				talk(t, a, b)
			})
		})
	}
}

// TestConfiguredEndpointOutlivesMessagesUnderWay has the peer send from the former endpoint while the configuration sets another
// one. A peer that stays there is followed again a second later.
func TestConfiguredEndpointOutlivesMessagesUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		carries(t, b, a, false, 100)
		endpoint := func() netip.AddrPort { return a.PeerStatus(b).Endpoint.AddrPort }
		for range 2 { // twice within a second
			a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Endpoint: &config.Endpoint{AddrPort: b.Outside(true)}}}})
			carries(t, b, a, false, 100)
			if at := endpoint(); at != b.Outside(true) {
				t.Errorf("messages under way moved the endpoint to %v, want %v", at, b.Outside(true))
			}
		}
		time.Sleep(time.Second)
		b.Apply(config.Device{Peers: []config.Peer{{PublicKey: a.Public(), Endpoint: &config.Endpoint{AddrPort: a.Outside(false)}}}})
		carries(t, b, a, false, 100)
		if at := endpoint(); at != b.Outside(false) {
			t.Errorf("a second later: the endpoint is %v, want %v", at, b.Outside(false))
		}
	})
}

// TestEndpointsReplacedInOneSecondDoNotReturn sets two endpoints in a row, while the peer sends from its listen port and from source
// ports.
func TestEndpointsReplacedInOneSecondDoNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		wantSoon(t, a, b)
		drain(t, a)
		last := netip.MustParseAddrPort("203.0.113.9:4242")
		for _, to := range []netip.AddrPort{netip.MustParseAddrPort("203.0.113.8:51820"), last} {
			a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Endpoint: &config.Endpoint{AddrPort: to}}}})
			burst(b, a)
		}
		b.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
		burst(b, a)
		if at := a.PeerStatus(b).Endpoint.AddrPort; at != last {
			t.Errorf("messages under way moved the endpoint to %v, want %v", at, last)
		}
		time.Sleep(time.Second)
		burst(b, a)
		if at := a.PeerStatus(b).Endpoint.AddrPort; at != b.Outside(false) {
			t.Errorf("a second later: the endpoint is %v, want %v", at, b.Outside(false))
		}
	})
}

// TestEndpointFollowsTheResponse has the responder move before it answers.
func TestEndpointFollowsTheResponse(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{Stop: true})
	devicetest.Connect(a, b)
	b.Follow(tun.Event{Up: true, MTU: 1420})
	defer b.Shut()
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Await("the initiation is here", func() bool { return b.QueuedHandshakes() == 1 })
	port := uint16(4242)
	b.Apply(config.Device{ListenPort: &port})
	b.Step()
	a.Await("it has followed", func() bool { return a.PeerStatus(b).Endpoint.AddrPort == b.Outside(false) })
}

// TestDoesNotRoamOnCookieReplies: a cookie reply proves nothing about where the peer is.
func TestDoesNotRoamOnCookieReplies(t *testing.T) {
	var seen messages
	lan := devicetest.NewLAN(seen.filter)
	a := lan.Host(t, 1, devicetest.Options{Stop: true})
	a.Follow(tun.Event{Up: true, MTU: 1420})
	defer a.Shut()
	s := newStranger(t, lan, 66)
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	configured := newStranger(t, lan, 200).port.Endpoint(false).Dst
	a.Apply(config.Device{Peers: []config.Peer{{
		PublicKey: key.Public(), Endpoint: &config.Endpoint{AddrPort: configured},
	}}})
	p := a.PeerOf(key.Public())
	p.Initiate()
	sniffed := seen.latest(wire.TypeInitiation)
	var reply wire.CookieReply
	checker := noise.NewCookieChecker(key.Public())
	if err := checker.CreateReply(&reply, sniffed, a.Outside(false), 0, rand.Reader); err != nil {
		t.Fatal(err)
	}
	from := underlay.Endpoint{Dst: s.port.Endpoint(false).Dst}
	for i, want := range []drop.Reason{drop.None, drop.HSBadCookie} { // taken once
		a.Handshake(reply[:], from)
		if got := a.StepHandshakes(); len(got) != 1 || got[0] != want {
			t.Fatalf("cookie reply %d: %v, want %v", i, got, want)
		}
	}
	if got := a.Status().Peers[0].Endpoint; got != (config.Endpoint{AddrPort: configured}) {
		t.Errorf("roamed to %v on a cookie reply", got)
	}
	p.Initiate()
	if msg := seen.latest(wire.TypeInitiation); !hasMAC2(msg) {
		t.Error("the next initiation does not use the cookie")
	}
}

// TestSourceAddressOutlastsOtherRoutesChange has a route that changes somewhere on the host, and one that leads to another link.
func TestSourceAddressOutlastsOtherRoutesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		var link atomic.Int64
		a := lan.Host(t, 1, devicetest.Options{Route: func(to *underlay.Endpoint, _ uint32) device.Route {
			if !to.Src.IsValid() {
				return device.Route{MTU: 1500}
			}
			return device.Route{MTU: 1500, Links: []int{int(link.Load())}}
		}})
		b := lan.Host(t, 2, devicetest.Options{})
		for _, h := range []*devicetest.Host{a, b} {
			h.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}}) // no hello tells the address again
		}
		devicetest.Connect(a, b)
		talk(t, a, b)
		want := func(when string, pinned bool) {
			t.Helper()
			time.Sleep(2 * time.Second)
			if src := a.PeerOf(b.Public()).Source(); src.IsValid() != pinned {
				t.Errorf("%s: the source address is %v", when, src)
			}
		}
		want("at first", true)
		for range 3 {
			a.RoutesChanged()
			want("after a change of another route", true)
		}
		link.Store(7)
		a.RoutesChanged()
		want("after a change of the peer's route", false)
		talk(t, a, b)
		want("after a message from the peer", true)
		a.RoutesChanged()
		want("after another change of another route", true)
		time.Sleep(5 * time.Minute) // the session expires
		a.RoutesChanged()
		want("without a session", false)
	})
}
