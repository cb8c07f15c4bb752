// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"crypto/rand"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// switched is a port that notes which ways were asked of it.
type switched struct {
	*underlaytest.Fake
	mu    sync.Mutex
	modes []config.UnderlayMode
}

func (s *switched) SetMode(mode config.UnderlayMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modes = append(s.modes, mode)
}

func (s *switched) SetPeers(underlay.Peers) {}

func (s *switched) EndpointAdded(config.Endpoint) {}

func (s *switched) Report() config.UnderlayReport {
	return config.UnderlayReport{Mode: config.UnderlayXDP, Path: config.UnderlayXDP, Device: "eth7", Lanes: 1}
}

// asked returns the modes set since the last call.
func (s *switched) asked() []config.UnderlayMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	modes := s.modes
	s.modes = nil
	return modes
}

// switches holds one host's ports, the latest last, and how each was to be opened.
type switches struct {
	ports []*switched
	how   []device.PortOptions
}

// host returns a device whose ports these are. It is used by one goroutine.
func (s *switches) host(t *testing.T) *device.Device {
	t.Helper()
	lan := underlaytest.NewNetwork(nil)
	v4, v6 := devicetest.Addresses(1)
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	d := device.New(device.Config{
		TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.DiscardHandler),
		OpenPort: func(o device.PortOptions) (underlay.Port, error) {
			f, err := lan.Open(v4, v6, o.Port, o.Lanes)
			if err != nil {
				return nil, err
			}
			s.ports, s.how = append(s.ports, &switched{Fake: f}), append(s.how, o)
			return s.last(), nil
		},
	})
	t.Cleanup(d.Shut)
	apply(t, d, config.Device{PrivateKey: &key})
	d.Follow(tun.Event{Up: true, MTU: 1420})
	return d
}

func (s *switches) last() *switched { return s.ports[len(s.ports)-1] }

// opened is how the last port was to be opened, and how many there were.
func (s *switches) opened() (config.UnderlayMode, int) { return s.how[len(s.how)-1].Mode, len(s.how) }

func apply(t *testing.T, d *device.Device, c config.Device) {
	t.Helper()
	if err := d.Configure(c); err != nil {
		t.Fatal(err)
	}
}

func underlayReport(d *device.Device) config.UnderlayReport { return d.Stats().(device.Stats).Path }

func underlayOf(mode config.UnderlayMode) config.Device {
	return config.Device{Settings: config.Settings{Underlay: &mode}}
}

func TestUnderlayModeChangeReachesOpenPort(t *testing.T) {
	var s switches
	d := s.host(t)
	port := s.last()
	for _, test := range []struct {
		change config.Device
		want   []config.UnderlayMode
	}{
		{underlayOf(config.UnderlayAuto), []config.UnderlayMode{config.UnderlayAuto}}, // which it is
		{underlayOf(config.UnderlayXDP), []config.UnderlayMode{config.UnderlayXDP}},
		{config.Device{}, nil},
		{underlayOf(config.UnderlayUDP), []config.UnderlayMode{config.UnderlayUDP}},
		{underlayOf(config.UnderlayAuto), []config.UnderlayMode{config.UnderlayAuto}},
	} {
		apply(t, d, test.change)
		if got := port.asked(); !slices.Equal(got, test.want) {
			t.Errorf("asked for %v, want %v", got, test.want)
		}
	}
	if got := underlayReport(d); got.Device != "eth7" || got.Path != config.UnderlayXDP {
		t.Errorf("not the port's report: %+v", got)
	}
	if _, n := s.opened(); n != 1 {
		t.Errorf("%d ports were opened", n)
	}
}

func TestNewPortOpensInConfiguredMode(t *testing.T) {
	var s switches
	d := s.host(t)
	apply(t, d, underlayOf(config.UnderlayXDP))
	number := uint16(4242)
	apply(t, d, config.Device{ListenPort: &number})
	if got, n := s.opened(); got != config.UnderlayXDP || n != 2 {
		t.Errorf("opened as %v, %d ports", got, n)
	}
	d.Follow(tun.Event{})
	apply(t, d, underlayOf(config.UnderlayUDP))
	if got := s.last().asked(); len(got) != 0 {
		t.Errorf("a closed port was asked for %v", got)
	}
	if got := underlayReport(d); got.Mode != config.UnderlayUDP || got.Path != config.UnderlayUDP || got.Reason == "" || got.Device != "" {
		t.Errorf("down: %+v", got)
	}
	d.Follow(tun.Event{Up: true, MTU: 1420})
	if got, n := s.opened(); got != config.UnderlayUDP || n != 3 {
		t.Errorf("opened as %v, %d ports", got, n)
	}
}

func TestPlainUDPPortReportsItsPath(t *testing.T) {
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{})
	h.Apply(underlayOf(config.UnderlayXDP))
	if got := underlayReport(h.Device); got.Mode != config.UnderlayXDP || got.Path != config.UnderlayUDP || got.Reason != "" {
		t.Errorf("%+v", got)
	}
}
