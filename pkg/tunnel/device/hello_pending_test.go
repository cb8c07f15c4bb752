// SPDX-License-Identifier: Apache-2.0

package device

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// TestHelloInheritsSourceOfItsAddressOnly: a message from a source port at one address says nothing about the path from another.
func TestHelloInheritsSourceOfItsAddressOnly(t *testing.T) {
	for _, c := range []struct {
		first, second string
		want          bool
	}{
		{"192.0.2.1:61000", "192.0.2.1:51820", true},
		{"192.0.2.1:61000", "192.0.2.9:51820", false},
		{"192.0.2.1:51820", "192.0.2.9:51820", false},
		{"192.0.2.1:51820", "192.0.2.9:61000", true},
	} {
		var q helloQueue
		for _, from := range []string{c.first, c.second} {
			m := &pendingHello{from: underlay.Endpoint{Dst: netip.MustParseAddrPort(from)}}
			m.hello = wire.Hello{First: 61000, Last: 61999, Own: netip.MustParseAddrPort("192.0.2.1:51820")}
			q.put(m)
		}
		if got := q.last.Load(); got.source != c.want {
			t.Errorf("a hello from %s after one from %s: got source %t, want %t", c.second, c.first, got.source, c.want)
		}
	}
}

func TestErasedSessionsLeaveNoHello(t *testing.T) {
	d := New(Config{TUN: tun.NewFake(tun.FakeConfig{}), Log: slog.New(slog.DiscardHandler)})
	defer d.Close()
	p := d.addPeer(noise.PublicKey{1})
	p.requests.hellos.put(&pendingHello{})
	p.mu.Lock()
	p.eraseSessions()
	p.mu.Unlock()
	if p.requests.hellos.last.Load() != nil {
		t.Error("a hello of the erased session waits")
	}
}
