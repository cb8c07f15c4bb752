// SPDX-License-Identifier: Apache-2.0

package hello

import (
	"errors"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// TestHelloStateTransitions checks the next state of every pair of state and event.
func TestHelloStateTransitions(t *testing.T) {
	const (
		idle, await, query = Idle, Awaiting, Querying
		probe, unconf, set = Probing, Unconfirmed, Settled
	)
	table := [events][states]State{
		// from:              idle   await  query  probe   unconf  set
		onReset:          {idle, idle, idle, idle, idle, idle},
		onRenew:          {idle, idle, idle, idle, idle, idle},
		onInitiated:      {await, await, await, await, await, await},
		onConfirmed:      {idle, await, query, query, idle, idle},
		onQuery:          {query, query, query, query, query, query},
		onLastQuery:      {idle, await, await, probe, unconf, set},
		onReceivedAll:    {set, set, set, set, set, set},
		onReceivedPart:   {probe, probe, probe, probe, unconf, unconf},
		onReceivedReset:  {probe, probe, probe, probe, probe, probe},
		onTimeout:        {idle, idle, idle, unconf, unconf, set},
		onSessionExpired: {idle, idle, idle, unconf, unconf, set},
	}
	for e, row := range table {
		for s, want := range row {
			if got := State(s).next(event(e)); got != want {
				t.Errorf("%v, %v: got %v, want %v", State(s), event(e), got, want)
			}
		}
	}
}

// TestHelloReceiveClassifiesHellos checks which event a received hello causes, and the queries that follow.
func TestHelloReceiveClassifiesHellos(t *testing.T) {
	open, heard := wire.Hello{Gathers: true}, wire.Hello{Gathers: true, Heard: true}
	for _, tt := range []struct {
		name   string
		from   State
		before wire.Hello
		hello  wire.Hello
		nat    error
		want   State
		tries  int
		lost   bool
	}{
		{"first hello", Awaiting, wire.Hello{}, open, nil, Probing, tries, false},
		{"repeated hello", Probing, open, open, nil, Probing, 0, false},
		{"confirmation", Probing, open, heard, nil, Settled, 0, false},
		{"peer without gather", Idle, wire.Hello{}, wire.Hello{}, nil, Settled, 0, false},
		{"NAT", Awaiting, wire.Hello{}, open, errors.New("NAT"), Settled, 0, false},
		{"peer restarted", Settled, heard, open, nil, Probing, tries, true},
		{"peer restarted behind NAT", Settled, heard, open, errors.New("NAT"), Settled, 0, true},
		{"peer began to gather", Settled, wire.Hello{}, open, nil, Unconfirmed, 0, false},
	} {
		x := Exchange{state: tt.from, Remote: &tt.before}
		lost := x.Receive(tt.hello, tt.nat)
		if x.state != tt.want || x.tries != tt.tries || lost != tt.lost || x.Remote == None || !x.Ropewalk {
			t.Errorf("%s: got state %v, %d tries, lost %v; want %v, %d, %v", tt.name, x.state, x.tries, lost, tt.want, tt.tries, tt.lost)
		}
	}
}

// TestHelloTimersStopWithExchange checks that no timer is left after each event that ends a round of queries.
func TestHelloTimersStopWithExchange(t *testing.T) {
	for _, e := range []event{onReset, onRenew, onInitiated, onSessionExpired} {
		x := Exchange{state: Probing, tries: 2, deadline: 5, sendAt: 3}
		if x.Next() != 3 {
			t.Fatalf("next timer at %d, want 3", x.Next())
		}
		if x.handle(e); x.Next() != 0 || x.tries != 0 {
			t.Errorf("%v: timer at %d, %d tries; want none", e, x.Next(), x.tries)
		}
	}
}
