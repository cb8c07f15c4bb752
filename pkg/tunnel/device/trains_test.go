// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// trainPort is a port that sends trains in one piece, on a path that may lose them.
type trainPort struct {
	underlay.Port
	loses, limited *atomic.Bool
	tests          *atomic.Int32
}

func (p trainPort) SetTrainsLost(_ *underlay.Endpoint, _ uint16, lost bool) { p.limited.Store(lost) }

// SendRun loses trains. The lanes of the test network send single datagrams.
func (p trainPort) SendRun(r *underlay.Run) error {
	if r.Segments == 1 {
		return p.Port.SendRun(r)
	}
	p.tests.Add(1)
	if p.loses.Load() {
		r.Sent = r.Segments
		return nil
	}
	return p.Port.SendRun(r)
}

// trainPair is two hosts of which the first has a trainPort.
func trainPair(t *testing.T, log *slog.Logger, loses bool) (a, b *devicetest.Host, p trainPort) {
	t.Helper()
	p = trainPort{loses: new(atomic.Bool), limited: new(atomic.Bool), tests: new(atomic.Int32)}
	p.loses.Store(loses)
	lan := devicetest.NewLAN(nil)
	a = lan.Host(t, 1, devicetest.Options{Log: log, WrapPort: func(port underlay.Port) underlay.Port {
		p.Port = port
		return p
	}})
	b = lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	return a, b, p
}

func TestLostTrainsAreSentSingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		a, b, p := trainPair(t, slog.New(slog.NewTextHandler(&log, nil)), true)
		time.Sleep(10 * time.Second)
		if !p.limited.Load() || !strings.Contains(log.String(), "UDP GSO") {
			t.Errorf("trains are sent in one piece: %v, log: %s", !p.limited.Load(), log.String())
		}
		if got := a.PeerStatus(b).PathMTU; got.State != config.PathMTUConfirmed {
			t.Errorf("got path MTU %+v, want it confirmed", got)
		}
		p.loses.Store(false)
		converse(t, a, b, 11*60)
		if p.limited.Load() {
			t.Error("trains are sent singly although they arrive")
		}
	})
}

func TestArrivingTrainsStayWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, p := trainPair(t, nil, false)
		converse(t, a, b, 60)
		if n := p.tests.Load(); n != 1 || p.limited.Load() {
			t.Errorf("got %d tests, trains sent singly: %v, want one test", n, p.limited.Load())
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
		if !p.limited.Load() {
			t.Error("trains are sent in one piece although they are lost")
		}
	})
}

func TestPeerWithoutHellosGetsNoTrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := trainPort{loses: new(atomic.Bool), limited: new(atomic.Bool), tests: new(atomic.Int32)}
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{WrapPort: func(port underlay.Port) underlay.Port {
			p.Port = port
			return p
		}})
		b := lan.Host(t, 2, devicetest.Options{})
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
