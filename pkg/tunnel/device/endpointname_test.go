// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// resolver is a name server in memory.
type resolver struct {
	at      atomic.Pointer[netip.AddrPort] // nil: does not answer
	ttl     time.Duration
	lookups atomic.Int64
}

func (r *resolver) resolve(_ context.Context, _ string, _ uint32) (device.Resolved, error) {
	r.lookups.Add(1)
	at := r.at.Load()
	if at == nil {
		return device.Resolved{}, errors.New("no answer")
	}
	return device.Resolved{Endpoints: []config.Endpoint{{AddrPort: *at}}, TTL: r.ttl}, nil
}

// namedPeers returns two hosts; the first resolves the name of the other, and has the endpoint first.
func namedPeers(t *testing.T, r *resolver, first *netip.AddrPort) (a, b *devicetest.Host) {
	lan := devicetest.NewLAN(nil)
	a = lan.Host(t, 1, devicetest.Options{Resolve: r.resolve})
	b = lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	peer := b.AsPeer(false)
	peer.EndpointName = "b.example:51820"
	if first != nil {
		peer.Endpoint = &config.Endpoint{AddrPort: *first}
	}
	a.Apply(config.Device{Peers: []config.Peer{peer}})
	return a, b
}

func TestFailingHandshakeResolvesTheEndpointAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := netip.MustParseAddrPort("192.0.2.99:51820")
		var r resolver
		a, b := namedPeers(t, &r, &gone)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(20 * time.Second) // the name server does not answer yet
		if got := a.PeerStatus(b); got.Endpoint.AddrPort != gone || got.EndpointName != "b.example:51820" || r.lookups.Load() == 0 {
			t.Errorf("got endpoint %v, name %q after %d lookups, want %v", got.Endpoint, got.EndpointName, r.lookups.Load(), gone)
		}
		at := b.Outside(false)
		r.at.Store(&at)
		time.Sleep(40 * time.Second)
		if got := a.PeerStatus(b); got.Endpoint.AddrPort != at || got.LastHandshake.IsZero() {
			t.Errorf("got endpoint %v, last handshake %v, want %v and a handshake", got.Endpoint, got.LastHandshake, at)
		}
		if n := r.lookups.Load(); n > 4 {
			t.Errorf("%d lookups in a minute", n)
		}
		if got := a.Stats().(device.Stats).Names[b.Public().Base64()].EndpointName; got != "b.example:51820" {
			t.Errorf("got the name %q", got)
		}
	})
}

func TestEndpointIsResolvedAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := resolver{ttl: 200 * time.Second}
		a, b := namedPeers(t, &r, nil)
		at := b.Outside(false)
		r.at.Store(&at)
		for range 60 { // traffic, so that there are handshakes
			a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
			time.Sleep(10 * time.Second)
		}
		if n := r.lookups.Load(); n < 1 || n > 2 {
			t.Errorf("got %d lookups in ten minutes, want 1 or 2", n)
		}
		if got := a.PeerStatus(b).Endpoint.AddrPort; got != at {
			t.Errorf("got endpoint %v, want %v", got, at)
		}
		// without traffic there is no lookup
		before := r.lookups.Load()
		time.Sleep(time.Hour)
		if n := r.lookups.Load(); n != before {
			t.Errorf("%d lookups without traffic", n-before)
		}
	})
}

func TestEndpointWithoutNameIsNotResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := netip.MustParseAddrPort("192.0.2.99:51820")
		var r resolver
		a, b := namedPeers(t, &r, &gone)
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Endpoint: &config.Endpoint{AddrPort: gone}}}})
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(time.Minute)
		if n := r.lookups.Load(); n != 0 {
			t.Errorf("%d lookups", n)
		}
	})
}

// TestLookupsOfManyFailingPeersArePaced: all of them fail at the same time.
func TestLookupsOfManyFailingPeersArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers, atOnce, interval = 100, 8, 100 * time.Millisecond
		var mu sync.Mutex
		var at []time.Time
		running, most := 0, 0
		resolve := func(context.Context, string, uint32) (device.Resolved, error) {
			mu.Lock()
			at, running = append(at, time.Now()), running+1
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return device.Resolved{}, errors.New("no answer")
		}
		a := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{Resolve: resolve})
		for i := range peers {
			key, gone := noise.PublicKey{31: byte(i + 1)}, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 99}), uint16(1000+i))
			keepalive := uint16(25)
			a.Apply(config.Device{Peers: []config.Peer{{
				PublicKey: key, Endpoint: &config.Endpoint{AddrPort: gone}, EndpointName: fmt.Sprintf("p%d.example:%d", i, 1000+i), Keepalive: &keepalive,
			}}})
		}
		time.Sleep(25 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(at) < peers || most > atOnce {
			t.Fatalf("got %d lookups, %d at the same time, want %d and at most %d", len(at), most, peers, atOnce)
		}
		for i := range len(at) - 2*atOnce {
			if d := at[i+2*atOnce].Sub(at[i]); d < interval {
				t.Fatalf("%d lookups in %v, want at most %d in %v", 2*atOnce+1, d, 2*atOnce, interval)
			}
		}
	})
}
