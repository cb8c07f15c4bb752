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

// TestRequestOutlivesHelloFromSourcePort: of the two hellos of a query only that from the listen port requests an answer. Lanes may overtake each other.
func TestRequestOutlivesHelloFromSourcePort(t *testing.T) {
	const source, listen = "192.0.2.1:61000", "192.0.2.1:51820"
	for _, order := range [][2]string{{source, listen}, {listen, source}} {
		var q helloQueue
		for _, from := range order {
			m := &pendingHello{from: underlay.Endpoint{Dst: netip.MustParseAddrPort(from)}}
			m.hello = wire.Hello{First: 61000, Last: 61999, Own: netip.MustParseAddrPort(listen), NoReply: from == source}
			q.put(m)
		}
		if got := q.last.Load(); got.hello.NoReply || !got.source {
			t.Errorf("after hellos from %v: got %+v, want one that requests an answer, from a source port", order, got)
		}
	}
}

// TestReturnedHelloPassesOnWhatItKnows: a newer hello arrived while a worker had one that has to wait.
func TestReturnedHelloPassesOnWhatItKnows(t *testing.T) {
	const first, listen = "192.0.2.1:61000", "192.0.2.1:51820"
	for name, c := range map[string]struct {
		from            string
		last            uint16
		source, planned bool
	}{
		"same address":    {listen, 61999, true, true},
		"other ports":     {listen, 61099, true, false},
		"other address":   {"192.0.2.9:51820", 61999, false, false},
		"no newer hello":  {first, 61999, true, true},
		"its own source":  {"192.0.2.9:61000", 61999, true, false},
		"its source port": {"192.0.2.1:61001", 61999, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var q helloQueue
			hello := func(from string, last uint16) *pendingHello {
				return &pendingHello{
					from:  underlay.Endpoint{Dst: netip.MustParseAddrPort(from), Src: netip.MustParseAddr("192.0.2.8")},
					hello: wire.Hello{First: 61000, Last: last, Own: netip.MustParseAddrPort("192.0.2.1:51820")},
				}
			}
			q.put(hello(first, 61999))
			taken := q.last.Swap(nil)
			taken.plan, taken.planned = []uint16{61007}, true
			if c.from != first {
				q.put(hello(c.from, c.last))
			}
			q.putBack(taken)
			got := q.last.Load()
			if got.from.Dst.String() != c.from || got.source != c.source || got.planned != c.planned || got.planned != (len(got.plan) == 1) {
				t.Errorf("got %+v, want one from %s with source %t, planned %t", got, c.from, c.source, c.planned)
			}
		})
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
