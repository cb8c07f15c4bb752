// SPDX-License-Identifier: Apache-2.0

package device

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/endpoint"
)

func TestScopedEndpointsMoveToNewIndex(t *testing.T) {
	d := New(Config{TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.DiscardHandler)})
	defer d.Close()
	at := netip.MustParseAddrPort("[fe80::1]:2")
	endpoints := []underlay.Endpoint{
		{Dst: at, Scope: 7, Src: netip.MustParseAddr("fe80::9")},
		{Dst: at, Scope: 8, Src: netip.MustParseAddr("fe80::9")},
		{Dst: netip.MustParseAddrPort("192.0.2.3:3")},
	}
	var peers []*Peer
	for i := range endpoints {
		p := d.peers.add(noise.PublicKey{byte(i + 1)})
		p.location.name = endpoint.NewName("gateway.local:2", config.Endpoint{AddrPort: endpoints[i].Dst, Scope: endpoints[i].Scope}, p.dev.clock())
		p.engine.Endpoint.Store(&endpoints[i])
		peers = append(peers, p)
	}
	nowhere := d.peers.add(noise.PublicKey{9})
	if !d.UsesScope(7) || d.UsesScope(9) {
		t.Errorf("index 7 is used: got %t; index 9: %t", d.UsesScope(7), d.UsesScope(9))
	}
	d.MoveScope(7, 9)
	if d.UsesScope(7) || !d.UsesScope(9) {
		t.Errorf("afterwards index 7 is used: got %t; index 9: %t", d.UsesScope(7), d.UsesScope(9))
	}
	for i, want := range []underlay.Endpoint{{Dst: at, Scope: 9}, endpoints[1], endpoints[2]} {
		if got := *peers[i].engine.Endpoint.Load(); got != want {
			t.Errorf("peer %d is at %+v, want %+v", i, got, want)
		}
		if got := peers[i].location.name.Known()[0].Scope; got != want.Scope {
			t.Errorf("the name of peer %d has index %d, want %d", i, got, want.Scope)
		}
	}
	if nowhere.engine.Endpoint.Load() != nil {
		t.Error("a peer without an endpoint got one")
	}
}
