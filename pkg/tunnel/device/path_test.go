// SPDX-License-Identifier: Apache-2.0

package device

import (
	"crypto/rand"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestRouteChangeClearsPeerSourceAddresses(t *testing.T) {
	d := New(Config{TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.DiscardHandler)})
	defer d.Close()
	pinned := []underlay.Endpoint{
		{Dst: netip.MustParseAddrPort("192.0.2.1:1"), Src: netip.MustParseAddr("192.0.2.9")},
		{Dst: netip.MustParseAddrPort("[fe80::1]:2"), Scope: 7, Src: netip.MustParseAddr("fe80::9")},
		{Dst: netip.MustParseAddrPort("192.0.2.3:3")}, // never heard from
	}
	var peers []*Peer
	for _, at := range pinned {
		key, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		p := d.peers.add(key.Public())
		p.engine.Endpoint.Store(&at)
		peers = append(peers, p)
	}
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	nowhere := d.peers.add(key.Public())
	d.RoutesChanged()
	for i, p := range peers {
		want := underlay.Endpoint{Dst: pinned[i].Dst, Scope: pinned[i].Scope}
		if got := *p.engine.Endpoint.Load(); got != want {
			t.Errorf("peer %d is at %+v, want %+v", i, got, want)
		}
	}
	if nowhere.engine.Endpoint.Load() != nil {
		t.Error("a peer without an endpoint got one")
	}
	peers[0].Roam(pinned[0])
	if got := *peers[0].engine.Endpoint.Load(); got != pinned[0] {
		t.Errorf("heard from again, the peer is at %+v, want %+v", got, pinned[0])
	}
}
