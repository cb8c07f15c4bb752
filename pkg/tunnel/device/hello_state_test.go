// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// TestHelloStateTransitions checks the next state of every pair of state and event.
func TestHelloStateTransitions(t *testing.T) {
	const (
		idle, await, query = helloIdle, helloAwaiting, helloQuerying
		probe, unconf, set = helloProbing, helloUnconfirmed, helloSettled
	)
	table := [helloEvents][helloStates]helloState{
		// from:              idle   await  query  probe   unconf  set
		helloReset:          {idle, idle, idle, idle, idle, idle},
		helloRenew:          {idle, idle, idle, idle, idle, idle},
		helloInitiated:      {await, await, await, await, await, await},
		helloConfirmed:      {idle, await, query, query, idle, idle},
		helloQuery:          {query, query, query, query, query, query},
		helloLastQuery:      {idle, await, await, probe, unconf, set},
		helloReceivedAll:    {set, set, set, set, set, set},
		helloReceivedPart:   {probe, probe, probe, probe, unconf, unconf},
		helloReceivedReset:  {probe, probe, probe, probe, probe, probe},
		helloTimeout:        {idle, idle, idle, unconf, unconf, set},
		helloSessionExpired: {idle, idle, idle, unconf, unconf, set},
	}
	for e, row := range table {
		for s, want := range row {
			if got := helloState(s).next(helloEvent(e)); got != want {
				t.Errorf("%v, %v: got %v, want %v", helloState(s), helloEvent(e), got, want)
			}
		}
	}
}

// TestHelloReceiveClassifiesHellos checks which event a received hello causes, and the queries that follow.
func TestHelloReceiveClassifiesHellos(t *testing.T) {
	open, heard := wire.Hello{Gathers: true}, wire.Hello{Gathers: true, Heard: true}
	for _, tt := range []struct {
		name   string
		from   helloState
		before wire.Hello
		hello  wire.Hello
		nat    error
		want   helloState
		tries  int
		lost   bool
	}{
		{"first hello", helloAwaiting, wire.Hello{}, open, nil, helloProbing, helloTries, false},
		{"repeated hello", helloProbing, open, open, nil, helloProbing, 0, false},
		{"confirmation", helloProbing, open, heard, nil, helloSettled, 0, false},
		{"peer without gather", helloIdle, wire.Hello{}, wire.Hello{}, nil, helloSettled, 0, false},
		{"NAT", helloAwaiting, wire.Hello{}, open, errors.New("NAT"), helloSettled, 0, false},
		{"peer restarted", helloSettled, heard, open, nil, helloProbing, helloTries, true},
		{"peer restarted behind NAT", helloSettled, heard, open, errors.New("NAT"), helloSettled, 0, true},
		{"peer began to gather", helloSettled, wire.Hello{}, open, nil, helloUnconfirmed, 0, false},
	} {
		x := helloExchange{state: tt.from, remote: &tt.before}
		lost := x.receive(tt.hello, tt.nat)
		if x.state != tt.want || x.tries != tt.tries || lost != tt.lost || x.remote == noHello || !x.ropewalk {
			t.Errorf("%s: got state %v, %d tries, lost %v; want %v, %d, %v", tt.name, x.state, x.tries, lost, tt.want, tt.tries, tt.lost)
		}
	}
}

// TestHelloTimersStopWithExchange checks that no timer is left after each event that ends a round of queries.
func TestHelloTimersStopWithExchange(t *testing.T) {
	for _, e := range []helloEvent{helloReset, helloRenew, helloInitiated, helloSessionExpired} {
		x := helloExchange{state: helloProbing, tries: 2, deadline: 5, sendAt: 3}
		if x.nextTimer() != 3 {
			t.Fatalf("next timer at %d, want 3", x.nextTimer())
		}
		if x.handle(e); x.nextTimer() != 0 || x.tries != 0 {
			t.Errorf("%v: timer at %d, %d tries; want none", e, x.nextTimer(), x.tries)
		}
	}
}

// openPort is a port of which only the number is known.
type openPort struct{ underlay.Port }

func (openPort) LocalPort() uint16 { return 51820 }

// TestPlannerGetsScopeOfLinkLocalPeer: without it, routing would choose the first device that has link-local addresses.
func TestPlannerGetsScopeOfLinkLocalPeer(t *testing.T) {
	want := underlay.Endpoint{Dst: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: 7, Src: netip.MustParseAddr("fe80::9")}
	var got underlay.Endpoint
	d := &Device{clock: func() int64 { return 1 }}
	d.cfg.Plan = func(_ netip.AddrPort, peer *underlay.Endpoint, _ uint32, _ spread.Ports) []uint16 {
		got = *peer
		return nil
	}
	d.spreading.Store(&spreadConfig{})
	d.port.Store(&portRef{openPort{}})
	p := &Peer{dev: d}
	p.requests.hellos.put(&pendingHello{from: want, hello: wire.Hello{First: 61000, Last: 61999}})
	queued := p.requests.hellos.last.Load() // as a lane that puts the next one
	if m := p.takePendingHello(); got != want || !m.planned {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if queued.planned {
		t.Error("the plan was added to a hello that a lane may be reading")
	}
}
