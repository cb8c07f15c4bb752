// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

func TestSpreadSourcesDoNotRoam(t *testing.T) {
	ports := spread.Ports{First: 61000, Last: 61999}
	at := func(addr string, port uint16) underlay.Endpoint {
		return underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), port), Src: lanetest.There.Src}
	}
	moved := at("198.51.100.7", 51820)
	for _, c := range []struct {
		name  string
		from  underlay.Endpoint
		known bool
		roams []underlay.Endpoint
		heard bool
	}{
		{"the listen port", lanetest.There, true, nil, false},
		{"a source port", at("192.0.2.2", 61000), true, nil, true},
		{"the last source port", at("192.0.2.2", 61999), true, nil, true},
		{"another port", at("192.0.2.2", 62000), true, []underlay.Endpoint{at("192.0.2.2", 62000)}, false},
		{"a source port at another address", at("198.51.100.7", 61001), true, []underlay.Endpoint{moved}, true},
		{"a source port that nobody has announced", at("192.0.2.2", 61000), false, []underlay.Endpoint{at("192.0.2.2", 61000)}, false},
	} {
		r := newRig(t)
		if c.known {
			r.Peer.Gathered.Store(&ports)
		}
		run, size := r.Seal(lanetest.In4.UDP([]byte("x")))
		r.ReceiveFrom(c.from, run, size)
		if !slices.Equal(r.Owner.Roams, c.roams) {
			t.Errorf("%s: roamed to %v, want %v", c.name, r.Owner.Roams, c.roams)
		}
		if r.Peer.Heard.Load() != c.heard || (r.Owner.Heard == 1) != c.heard {
			t.Errorf("%s: heard %v, reported %d times", c.name, r.Peer.Heard.Load(), r.Owner.Heard)
		}
	}
}

// TestHellosReachSlowPath, and neither to the TUN nor to where they came from.
func TestHellosReachSlowPath(t *testing.T) {
	r := newRig(t)
	hello := wire.AppendHello(nil, &wire.Hello{Gathers: true, First: 61000, Last: 61999})
	packet := lanetest.In4.UDP([]byte("data"))
	elsewhere := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.2:61234"), Src: lanetest.There.Src}
	run, size := r.Seal(hello)
	r.ReceiveFrom(elsewhere, run, size)
	if len(r.Owner.Hellos) != 1 || !bytes.HasPrefix(r.Owner.Hellos[0], hello) || len(r.Owner.Roams) != 0 {
		t.Errorf("%d hellos, roamed to %v", len(r.Owner.Hellos), r.Owner.Roams)
	}
	run, size = r.Seal(packet)
	r.Receive(run, size)
	if got := r.Delivered(); len(got) != 1 {
		t.Errorf("got %d trains for the TUN, want the packet's", len(got))
	}
	if r.AllDrops() != 0 {
		t.Errorf("got %d drops, want 0", r.AllDrops())
	}
	run, size = r.Seal(append([]byte{0}, hello[2:]...)) // not quite one
	r.Receive(run, size)
	if r.Drops(drop.RXInnerMalformed) != 1 {
		t.Error("a plaintext that is neither packet nor hello was not counted")
	}
}

func TestAcceptedControlMessagesAreCounted(t *testing.T) {
	r := newRig(t)
	for _, refusal := range []drop.Reason{drop.None, drop.HelloUnwanted} {
		r.Owner.Refusal = refusal
		run, size := r.Seal(wire.AppendHello(nil, &wire.Hello{}))
		r.Receive(run, size)
	}
	if n := r.Lane.Snapshot().RxControl; n != 1 {
		t.Errorf("got %d control messages received, want 1", n)
	}
}

// portsOf returns the peer's counts by port.
func portsOf(p *lane.Peer) map[uint16]uint32 {
	counts := map[uint16]uint32{}
	for _, c := range p.PortCounts(nil) {
		counts[c.Port] += c.Messages
	}
	return counts
}

// from returns the peer's endpoint with another port.
func from(port uint16) underlay.Endpoint {
	return underlay.Endpoint{Dst: netip.AddrPortFrom(lanetest.There.Dst.Addr(), port), Src: lanetest.There.Src}
}

// TestReceivedMessagesAreCountedByPort has data, keepalives, hellos and messages that are not authentic come from source ports.
func TestReceivedMessagesAreCountedByPort(t *testing.T) {
	r := newRig(t)
	hello := wire.AppendHello(nil, &wire.Hello{})
	run, size := r.Seal(lanetest.In4.UDP(make([]byte, 100)), lanetest.In4.UDP(make([]byte, 100)), lanetest.In4.UDP(make([]byte, 100)))
	r.ReceiveFrom(from(61001), run, size)
	if got := r.Peer.PortCounts(nil); got != nil {
		t.Errorf("no ports known: got %v, want none", got)
	}
	r.Peer.Gathered.Store(&spread.Ports{First: 61000, Last: 61999})
	for _, plain := range [][][]byte{{lanetest.In4.UDP([]byte("a")), lanetest.In4.UDP([]byte("b"))}, {nil}, {hello}} {
		for _, port := range []uint16{61001, 61065, lanetest.There.Dst.Port(), 5} {
			run, size := r.Seal(plain...)
			r.ReceiveFrom(from(port), run, size)
			r.ReceiveFrom(from(port), run, size) // a replay
		}
	}
	if got, want := portsOf(r.Peer), map[uint16]uint32{61001: 4, 61065: 4}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestManyPortsBeginCountingAnew has a peer that uses more ports than it may at once.
func TestManyPortsBeginCountingAnew(t *testing.T) {
	var p lane.Peer
	for port := range uint16(1000) {
		p.CountPort(1000+port, 3)
		p.CountPort(1000+port, 1)
	}
	counts := portsOf(&p)
	if n := len(p.PortCounts(nil)); n > spread.MaxPorts || n != len(counts) {
		t.Errorf("got %d counts of %d ports, want at most %d", n, len(counts), spread.MaxPorts)
	}
	if counts[1999] != 4 {
		t.Errorf("got %d messages of the last port, want 4", counts[1999])
	}
}
