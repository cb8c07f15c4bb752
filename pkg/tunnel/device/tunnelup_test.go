// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// logOfStart returns the log of a host that has talked to a peer for some seconds.
func logOfStart(t *testing.T, filter underlaytest.Filter, mode config.SpreadMode) string {
	t.Helper()
	var log lockedText
	lan := devicetest.NewLAN(filter)
	a := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	b := lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	b.Apply(config.Device{Settings: config.Settings{Spread: &mode}})
	for range 20 {
		talk(t, a, b)
		time.Sleep(time.Second)
	}
	return log.String()
}

func TestTunnelUpIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logOfStart(t, nil, config.SpreadAuto)
		if strings.Count(log, "tunnel to peer up") != 1 || !strings.Contains(log, " ports\" underlay=udp mtu=1420") {
			t.Error(log)
		}
		for _, unwanted := range []string{"roamed", "spread stopped", "firewall", "handshake complete"} {
			if strings.Contains(log, unwanted) {
				t.Errorf("%q is in\n%s", unwanted, log)
			}
		}
	})
}

func TestTunnelWithoutSpreadIsUpToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logOfStart(t, nil, config.SpreadOff)
		if strings.Count(log, "tunnel to peer up") != 1 || !strings.Contains(log, `spread="off: the peer sent no hello`) {
			t.Error(log)
		}
	})
}

func TestFirewallWarningIsForAnExchangeThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logOfStart(t, func(from, _ netip.AddrPort, _ []byte) underlaytest.Verdict {
			if from.Port() >= 61000 {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		}, config.SpreadAuto)
		if strings.Count(log, "level=WARN") != 1 || strings.Count(log, "messages from spread source ports do not reach the peer") != 1 {
			t.Error(log)
		}
		if strings.Count(log, "tunnel to peer up") != 1 {
			t.Error(log)
		}
	})
}

// TestUpgradeDuringExchangeWarnsOfNoFirewall hands a device over before the peer has confirmed its source ports. The next one has no session at
// first, so it does not know yet whether messages from these ports arrive.
func TestUpgradeDuringExchangeWarnsOfNoFirewall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var lose atomic.Bool
		w := wiretap{lose: func(d tapped) bool { return lose.Load() && d.hello() }}
		lan := devicetest.NewLAN(w.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		wantSoon(t, a, b)
		lose.Store(true)
		for _, mode := range []config.SpreadMode{config.SpreadOff, config.SpreadAuto} {
			a.Apply(config.Device{Settings: config.Settings{Spread: &mode}})
		}
		s := handedOn(t, a)
		c := lan.Host(t, 1, devicetest.Options{Stop: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err := c.Resume(s); err != nil {
			t.Fatal(err)
		}
		c.Key = a.Key
		lose.Store(false)
		c.Start()
		time.Sleep(time.Second) // until the peer uses the new session
		wantSoon(t, c, b)
		if strings.Contains(log.String(), "level=WARN") || strings.Count(log.String(), "spread started") != 1 {
			t.Error(log.String())
		}
	})
}

// TestDownInterfaceHasNoTunnelUp takes the interface down before a hello has arrived, and then turns spread off.
func TestDownInterfaceHasNoTunnelUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		w := wiretap{lose: tapped.hello}
		a, b := tappedPair(t, &w, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		carries(t, a, b, false, 500)
		for _, h := range []*devicetest.Host{a, b} {
			h.Follow(tun.Event{Up: false, MTU: tun.DefaultMTU})
			h.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
		}
		time.Sleep(time.Second)
		if strings.Contains(log.String(), "tunnel to peer up") {
			t.Error(log.String())
		}
	})
}

// TestTunnelUpWaitsForHelloAfterRoaming adds a peer anew that still spreads, as after a restart of this host. The peer's first hellos are lost,
// and its data moves the endpoint to a source port.
func TestTunnelUpWaitsForHelloAfterRoaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var lose atomic.Bool
		v4, _ := devicetest.Addresses(2)
		w := wiretap{lose: func(d tapped) bool { return lose.Load() && d.hello() && d.from.Addr() == v4 }}
		lan := devicetest.NewLAN(w.filter)
		a, b := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		wantSoon(t, a, b)
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Remove: true}}})
		a.Apply(config.Device{Peers: []config.Peer{b.AsPeer(false)}})
		lose.Store(true)
		carries(t, a, b, false, 500)
		synctest.Wait() // until the peer uses the new session
		carries(t, b, a, false, 500)
		synctest.Wait()
		lose.Store(false)
		wantSoon(t, a, b)
		if up, ports := strings.Count(log.String(), "tunnel to peer up"), strings.Count(log.String(), " ports\" underlay=udp"); up != 2 || ports != 2 {
			t.Errorf("got %d tunnels up, %d of them spread, want 2 and 2:\n%s", up, ports, log.String())
		}
	})
}

// TestTunnelUpWithoutHelloAfterRoaming has a peer without spread initiate at another address than the configured one.
func TestTunnelUpWithoutHelloAfterRoaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), lan.Host(t, 2, devicetest.Options{})
		b.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
		former := b.AsPeer(false)
		former.Endpoint = &config.Endpoint{AddrPort: netip.MustParseAddrPort("203.0.113.9:51820")}
		a.Apply(config.Device{Peers: []config.Peer{former}})
		b.Apply(config.Device{Peers: []config.Peer{a.AsPeer(false)}})
		talk(t, b, a)
		time.Sleep(5 * time.Second)
		if text := log.String(); strings.Count(text, "tunnel to peer up") != 1 || !strings.Contains(text, `spread="off: the peer sent no hello`) {
			t.Errorf("got %+v, log\n%s", a.PeerStatus(b).Spread, text)
		}
	})
}
