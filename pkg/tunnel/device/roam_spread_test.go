// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// portKeepingNAT is a network on which host 2 stands behind a NAT once on is set. The NAT keeps all source ports but the listen port.
type portKeepingNAT struct {
	net    *underlaytest.Network
	listen uint16 // to which the NAT maps the listen port; it changes when the NAT forgets its mappings
	mu     sync.Mutex
	on     bool
	inside map[uint16]uint16 // by outside port
}

func (n *portKeepingNAT) route(d underlaytest.Routed) {
	outside, client := netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("192.0.2.2")
	n.mu.Lock()
	drop := false
	if n.on && d.From.Addr() == client {
		port := d.From.Port()
		if port == devicetest.ListenPort {
			port = n.listen
		}
		n.inside[port] = d.From.Port()
		d.From = netip.AddrPortFrom(outside, port)
	}
	switch d.To.Addr() {
	case client:
		drop = n.on // the former address is gone
	case outside:
		port, ok := n.inside[d.To.Port()]
		drop, d.To = !ok, netip.AddrPortFrom(client, port)
	}
	n.mu.Unlock()
	if !drop {
		n.net.Deliver(d)
	}
}

// TestHubFollowsSpreadingPeerBehindNAT has a client that spreads move behind a NAT. The hub must reach it with the first authentic message, as
// without spread, whatever the NAT does with the listen port.
func TestHubFollowsSpreadingPeerBehindNAT(t *testing.T) {
	for name, listen := range map[string]uint16{"the same listen port": devicetest.ListenPort, "another listen port": 40000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &portKeepingNAT{listen: listen, inside: map[uint16]uint16{}}
				n.net = underlaytest.NewRoutedNetwork(n.route)
				lan := devicetest.LAN{Network: n.net}
				hub, client := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
				devicetest.Connect(hub, client)
				wantSoon(t, client, hub)
				var mu sync.Mutex
				received := 0
				hub.Watch(func(int, []byte) {})
				client.Watch(func(int, []byte) { mu.Lock(); received++; mu.Unlock() })
				up, down := &flow.Flow{Ends: client.To(hub, 2000, false), ID: 1}, &flow.Flow{Ends: hub.To(client, 2000, false), ID: 2}
				n.mu.Lock()
				n.on = true
				n.mu.Unlock()
				client.RoutesChanged()
				const packets = 1000
				for range packets {
					client.Send(up.Next(100))
					hub.Send(down.Next(100))
					time.Sleep(20 * time.Millisecond)
				}
				mu.Lock()
				defer mu.Unlock()
				if lost := packets - received; lost > 1 {
					t.Errorf("got %d packets lost towards the client, want one at most: that sent before its first", lost)
				}
			})
		})
	}
}

// TestSpreadOnFollowsReboundPeerByHandshake has a peer without ropewalk, to which this host spreads all the same, behind a NAT that maps it anew to one
// of the ports from which the peer might spread. Data from there does not move the endpoint. The handshake that follows 15 s without an answer does.
func TestSpreadOnFollowsReboundPeerByHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &portKeepingNAT{listen: 40000, on: true, inside: map[uint16]uint16{}}
		n.net = underlaytest.NewRoutedNetwork(n.route)
		lan := devicetest.LAN{Network: n.net}
		hub, client := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		on, off := config.SpreadOn, config.SpreadOff
		hub.Apply(config.Device{Settings: config.Settings{Spread: &on}})
		client.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		devicetest.Connect(hub, client)
		up, down := &flow.Flow{Ends: client.To(hub, 2000, false), ID: 1}, &flow.Flow{Ends: hub.To(client, 2000, false), ID: 2}
		var mu sync.Mutex
		received := 0
		hub.Watch(func(int, []byte) {})
		client.Watch(func(int, []byte) { mu.Lock(); received++; mu.Unlock() })
		client.Send(up.Next(100))
		time.Sleep(time.Second)
		n.mu.Lock()
		n.listen, n.inside = 61500, map[uint16]uint16{}
		n.mu.Unlock()
		for range 25 {
			client.Send(up.Next(100))
			hub.Send(down.Next(100))
			time.Sleep(time.Second)
		}
		mu.Lock()
		before := received
		mu.Unlock()
		for range 5 {
			hub.Send(down.Next(100))
			time.Sleep(time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		if received-before != 5 {
			t.Errorf("got %d of 5 packets 25 s after the NAT had changed its port, and %d before", received-before, before)
		}
	})
}
