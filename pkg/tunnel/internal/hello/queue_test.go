// SPDX-License-Identifier: Apache-2.0

package hello

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
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
		var q Queue
		for _, from := range []string{c.first, c.second} {
			m := &Pending{From: underlay.Endpoint{Dst: netip.MustParseAddrPort(from)}}
			m.Hello = wire.Hello{First: 61000, Last: 61999, Own: netip.MustParseAddrPort("192.0.2.1:51820")}
			q.Put(m)
		}
		if got := q.last.Load(); got.Source != c.want {
			t.Errorf("a hello from %s after one from %s: got source %t, want %t", c.second, c.first, got.Source, c.want)
		}
	}
}

// TestRequestOutlivesHelloFromSourcePort: of the two hellos of a query only that from the listen port requests an answer. Lanes may overtake each other.
func TestRequestOutlivesHelloFromSourcePort(t *testing.T) {
	const source, listen = "192.0.2.1:61000", "192.0.2.1:51820"
	for _, order := range [][2]string{{source, listen}, {listen, source}} {
		var q Queue
		for _, from := range order {
			m := &Pending{From: underlay.Endpoint{Dst: netip.MustParseAddrPort(from)}}
			m.Hello = wire.Hello{First: 61000, Last: 61999, Own: netip.MustParseAddrPort(listen), NoReply: from == source}
			q.Put(m)
		}
		if got := q.last.Load(); got.Hello.NoReply || !got.Source {
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
			var q Queue
			hello := func(from string, last uint16) *Pending {
				return &Pending{
					From:  underlay.Endpoint{Dst: netip.MustParseAddrPort(from), Src: netip.MustParseAddr("192.0.2.8")},
					Hello: wire.Hello{First: 61000, Last: last, Own: netip.MustParseAddrPort("192.0.2.1:51820")},
				}
			}
			q.Put(hello(first, 61999))
			taken := q.last.Swap(nil)
			taken.Plan, taken.Planned = []uint16{61007}, true
			if c.from != first {
				q.Put(hello(c.from, c.last))
			}
			q.PutBack(taken)
			got := q.last.Load()
			if got.From.Dst.String() != c.from || got.Source != c.source || got.Planned != c.planned || got.Planned != (len(got.Plan) == 1) {
				t.Errorf("got %+v, want one from %s with source %t, planned %t", got, c.from, c.source, c.planned)
			}
		})
	}
}

// TestPlansLeaveQueuedHelloAlone: a lane may be reading it.
func TestPlansLeaveQueuedHelloAlone(t *testing.T) {
	m := &Pending{Hello: wire.Hello{Plan: []uint16{1}}}
	planned := m.WithPlan([]uint16{2})
	if m.Planned || !planned.Planned || planned.Plan[0] != 2 {
		t.Errorf("got %+v of %+v", planned, m)
	}
	if bare := planned.Unplanned(); bare.Planned || bare.Hello.Plan != nil || !planned.Planned || m.Hello.Plan == nil {
		t.Errorf("got %+v of %+v", bare, planned)
	}
}
