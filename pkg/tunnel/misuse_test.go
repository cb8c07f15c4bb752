// SPDX-License-Identifier: Apache-2.0

package tunnel_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel"
	"github.com/ropewalk/ropewalk/test/expect"
)

// newTunnel returns a tunnel over a fake TUN. It is not started.
func newTunnel(t *testing.T) *tunnel.Tunnel {
	t.Helper()
	network := underlaytest.NewNetwork(nil)
	tn, err := tunnel.New(tunnel.Config{
		TUN: tuntest.NewFake(tuntest.FakeConfig{}),
		OpenPort: func(o tunnel.PortOptions) (underlay.Port, error) {
			return network.Open(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), o.Port, o.Lanes)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tn
}

// In these tests synctest reports a panic of the tunnel's goroutines, and goroutines that outlive the tunnel.

func TestStartAfterCloseDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTunnel(t)
		tn.Close()
		tn.Start(t.Context())
		synctest.Wait()
		tn.Close()
		<-tn.Done()
	})
}

func TestSecondStartDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTunnel(t)
		tn.Start(t.Context())
		tn.Start(t.Context())
		synctest.Wait()
		select {
		case <-tn.Done():
			t.Error("the tunnel has ended")
		default:
		}
		tn.Close()
		<-tn.Done()
	})
}

func TestConcurrentStartStatusCloseEndTunnel(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			tn := newTunnel(t)
			ctx, cancel := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			for _, call := range []func(){func() { tn.Start(ctx) }, func() { _ = tn.Status() }, tn.Close, cancel, tn.Close} {
				calls.Go(call)
			}
			calls.Wait()
			<-tn.Done()
		})
	}
}

func TestContextDoesNotRetainEndedTunnel(t *testing.T) {
	start := func() weak.Pointer[tuntest.Fake] {
		device := tuntest.NewFake(tuntest.FakeConfig{})
		tn, err := tunnel.New(tunnel.Config{TUN: device})
		if err != nil {
			t.Fatal(err)
		}
		tn.Start(t.Context())
		tn.Close()
		return weak.Make(device)
	}
	ended := start()
	expect.Eventually(t, "the TUN device of an ended tunnel is unreachable from the context of Start", func() bool {
		runtime.GC()
		return ended.Value() == nil
	})
}

func TestConfigureRefusesInvalidValues(t *testing.T) {
	tn := newTunnel(t)
	defer tn.Close()
	spread, underlayMode := config.SpreadMode(99), config.UnderlayMode(99)
	for name, c := range map[string]config.Device{
		"spread":     {Settings: config.Settings{Spread: &spread}},
		"underlay":   {Settings: config.Settings{Underlay: &underlayMode}},
		"allowed IP": {Peers: []config.Peer{{PublicKey: noise.PublicKey{1}, AllowedIPs: []config.AllowedIP{{}}}}},
	} {
		if err := tn.Configure(c); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(tn.Status().Peers); n != 0 {
		t.Errorf("refused changes added %d peers", n)
	}
}
