// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// trainPort is a port that sends trains in one piece, on a path that may lose them.
type trainPort struct {
	underlay.Port
	*trainPath
}

type trainPath struct {
	loses, full atomic.Bool
	limits      sync.Map // the destinations with a limit
	tests       atomic.Int32
	lastTest    atomic.Int64 // when
	together    atomic.Int32 // tests at one instant with another one
}

func (p trainPort) SetTrainsLost(to underlay.Destination, lost bool) bool {
	if !lost {
		p.limits.Delete(to)
	} else if !p.full.Load() {
		p.limits.Store(to, nil)
	}
	return !lost || !p.full.Load()
}

// limited reports whether single datagrams leave to an address.
func (p *trainPath) limited(to netip.AddrPort) bool {
	_, ok := p.limits.Load(underlay.Destination{Addr: to.Addr()})
	return ok
}

// SendRun loses trains. The lanes of the test network send single datagrams.
func (p trainPort) SendRun(r *underlay.Run) error {
	if r.Segments == 1 {
		return p.Port.SendRun(r)
	}
	p.tests.Add(1)
	if now := time.Now().UnixNano(); p.lastTest.Swap(now) == now {
		p.together.Add(1)
	}
	if p.loses.Load() {
		r.Sent = r.Segments
		return nil
	}
	return p.Port.SendRun(r)
}

// options returns the options of a host with a trainPort on a path.
func (p *trainPath) options(log *slog.Logger) devicetest.Options {
	return devicetest.Options{
		Log: log, Route: func(*underlay.Endpoint, uint32) device.Route { return device.Route{} },
		WrapPort: func(port underlay.Port) underlay.Port { return trainPort{port, p} },
	}
}

// trainPair is two hosts of which the first has a trainPort.
func trainPair(t *testing.T, log *slog.Logger, loses bool) (a, b *devicetest.Host, p *trainPath) {
	t.Helper()
	lan := devicetest.NewLAN(nil)
	p = new(trainPath)
	p.loses.Store(loses)
	a, b = lan.Host(t, 1, p.options(log)), lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	return a, b, p
}

func TestLostTrainsAreSentSingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		a, b, p := trainPair(t, slog.New(slog.NewTextHandler(&log, nil)), true)
		time.Sleep(10 * time.Second)
		if !p.limited(b.Outside(false)) || !strings.Contains(log.String(), "UDP GSO") {
			t.Errorf("trains are sent in one piece: %v, log: %s", !p.limited(b.Outside(false)), log.String())
		}
		if got := a.PeerStatus(b).PathMTU; got.State != config.PathMTUConfirmed {
			t.Errorf("got path MTU %+v, want it confirmed", got)
		}
		p.loses.Store(false)
		converse(t, a, b, 11*60)
		if p.limited(b.Outside(false)) {
			t.Error("trains are sent singly although they arrive")
		}
	})
}

func TestArrivingTrainsStayWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, p := trainPair(t, nil, false)
		converse(t, a, b, 60)
		if n := p.tests.Load(); n != 1 || p.limited(b.Outside(false)) {
			t.Errorf("got %d tests, trains sent singly: %v, want one test", n, p.limited(b.Outside(false)))
		}
	})
}

func TestChangedRoutesRepeatTestOfTrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, p := trainPair(t, slog.New(slog.DiscardHandler), false)
		converse(t, a, b, 120)
		p.loses.Store(true)
		a.RoutesChanged()
		converse(t, a, b, 60)
		if !p.limited(b.Outside(false)) {
			t.Error("trains are sent in one piece although they are lost")
		}
	})
}

func TestPeerWithoutHellosGetsNoTrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(trainPath)
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, p.options(nil)), lan.Host(t, 2, devicetest.Options{})
		off := config.SpreadOff
		if err := b.Configure(config.Device{Settings: config.Settings{Spread: &off}}); err != nil {
			t.Fatal(err)
		}
		devicetest.Connect(a, b)
		talk(t, a, b)
		converse(t, a, b, 60)
		if n := p.tests.Load(); n != 0 {
			t.Errorf("got %d tests, want none", n)
		}
	})
}

func TestLimitOfTrainsEndsWithTheEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, p := trainPair(t, slog.New(slog.DiscardHandler), true)
		time.Sleep(10 * time.Second)
		if !p.limited(b.Outside(false)) {
			t.Fatal("lost trains were not found")
		}
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Endpoint: &config.Endpoint{AddrPort: b.Outside(true)}}}})
		converse(t, a, b, 30)
		if p.limited(b.Outside(false)) || !p.limited(b.Outside(true)) {
			t.Errorf("limited at the old address: %v, at the new one: %v, want the new one", p.limited(b.Outside(false)), p.limited(b.Outside(true)))
		}
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Remove: true}}})
		time.Sleep(time.Minute)
		if p.limited(b.Outside(true)) {
			t.Error("a removed peer has a limit")
		}
	})
}

// TestLostTrainsWithoutRoomAreNotSentSingly has too many destinations lose trains.
func TestLostTrainsWithoutRoomAreNotSentSingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		a, b, p := trainPair(t, slog.New(slog.NewTextHandler(&log, nil)), true)
		p.full.Store(true)
		time.Sleep(10 * time.Second)
		if text := log.String(); strings.Contains(text, "sending single ones") || !strings.Contains(text, "too many others") {
			t.Errorf("the log says %s", text)
		}
		p.full.Store(false)
		converse(t, a, b, 10)
		if !p.limited(b.Outside(false)) {
			t.Error("trains are sent in one piece although there is room for a limit")
		}
	})
}

func TestHandoverKeepsLostTrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		p, discard := new(trainPath), slog.New(slog.DiscardHandler)
		p.loses.Store(true)
		a, b := lan.Host(t, 1, p.options(discard)), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		time.Sleep(10 * time.Second)
		s := handedOn(t, a)
		next := new(trainPath)
		next.loses.Store(true)
		o := next.options(discard)
		o.Stop = true
		c := lan.Host(t, 1, o)
		if err := c.Resume(s); err != nil {
			t.Fatal(err)
		}
		c.Key = a.Key
		c.Start()
		time.Sleep(time.Second) // a test takes longer
		if !next.limited(b.Outside(false)) {
			t.Error("trains are sent in one piece although they are lost")
		}
		next.loses.Store(false)
		converse(t, c, b, 30)
		if next.limited(b.Outside(false)) {
			t.Error("trains are sent singly although they arrive")
		}
	})
}

// TestChangedRoutesTestPeersInTurn: the tests of many peers must not leave in one burst.
func TestChangedRoutesTestPeersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		p := new(trainPath)
		a := lan.Host(t, 1, p.options(nil))
		var peers []*devicetest.Host
		for n := range byte(4) {
			peers = append(peers, lan.Host(t, 2+n, devicetest.Options{}))
			devicetest.Connect(a, peers[n])
			talk(t, a, peers[n])
		}
		time.Sleep(2 * time.Minute)
		for _, b := range peers {
			converse(t, a, b, 1)
		}
		before, together := p.tests.Load(), p.together.Load()
		a.RoutesChanged()
		time.Sleep(5 * time.Second)
		if n := p.tests.Load() - before; int(n) != len(peers) || p.together.Load() != together {
			t.Errorf("got %d tests, %d of them together with others, want %d one by one", n, p.together.Load()-together, len(peers))
		}
	})
}
