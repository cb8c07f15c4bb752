// SPDX-License-Identifier: Apache-2.0

package device

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
)

// openPort is a port of which only the number is known.
type openPort struct{ underlay.Port }

func (openPort) LocalPort() uint16 { return 51820 }

// TestPlannerGetsScopeOfLinkLocalPeer: without it, routing would choose the first device that has link-local addresses.
func TestPlannerGetsScopeOfLinkLocalPeer(t *testing.T) {
	want := underlay.Endpoint{Dst: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: 7, Src: netip.MustParseAddr("fe80::9")}
	var got underlay.Endpoint
	d := &Device{clock: func() int64 { return 1 }}
	d.outer.dev = d
	d.cfg.Plan = func(_ netip.AddrPort, peer *underlay.Endpoint, _ uint32, _ spread.Ports) []uint16 {
		got = *peer
		return nil
	}
	d.spreading.Store(&spreadConfig{})
	d.outer.port.Store(&portRef{openPort{}})
	p := &Peer{dev: d}
	p.hello.peer = p
	p.hello.queue.Put(&hello.Pending{From: want, Hello: wire.Hello{First: 61000, Last: 61999}})
	if m := p.hello.take(); got != want || !m.Planned {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestErasedSessionsLeaveNoHello(t *testing.T) {
	d := New(Config{TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.DiscardHandler)})
	defer d.Close()
	p := d.peers.add(noise.PublicKey{1})
	p.hello.queue.Put(&hello.Pending{})
	p.mu.Lock()
	p.sessions.erase()
	p.mu.Unlock()
	if p.hello.queue.Take() != nil {
		t.Error("a hello of the erased session waits")
	}
}
