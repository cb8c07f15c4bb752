// SPDX-License-Identifier: Apache-2.0

package hello

import "time"

const (
	// Pause is the minimum time, in ns, between two hellos to one peer.
	Pause = int64(250 * time.Millisecond)
	// tries is the number of queries, hellos that request an answer, in one round. retry is the time between two
	// of them, in ns.
	tries = 3
	retry = int64(time.Second)
	// Wait is how long, in ns, an initiator waits for the responder's first hello.
	Wait = tries * retry
)

// State is the state of the capability exchange with one peer in the current session.
type State uint8

const (
	Idle        State = iota // no hello in this session, and none expected
	Awaiting                 // waiting for the peer's first hello of this session
	Querying                 // sending queries until that hello arrives
	Probing                  // hello received; querying whether our other source ports reach the peer
	Unconfirmed              // hello received; the peer did not confirm our other source ports in time
	Settled                  // hello received; nothing left to query
	states      = iota
)

// String returns the state's name.
func (s State) String() string {
	return [states]string{"idle", "awaiting", "querying", "probing", "unconfirmed", "settled"}[s]
}

// received reports whether the peer has sent a hello in this session.
func (s State) received() bool { return s >= Probing }

// event is an input of the state machine.
type event uint8

const (
	onReset          event = iota // the session ended, or the peer turned out to be a stock WireGuard
	onRenew                       // addresses, ports or settings changed: everything must be queried again
	onInitiated                   // our handshake is complete; a ropewalk responder sends the first hello
	onConfirmed                   // the peer uses the session that it initiated; we send the first hello
	onQuery                       // a round of queries begins
	onLastQuery                   // the last query of the round was sent
	onReceivedAll                 // a hello arrived that leaves nothing to query
	onReceivedPart                // a hello arrived that leaves something to query
	onReceivedReset               // as onReceivedPart, and the peer has forgotten that it received from our ports
	onTimeout                     // the wait for an answer to the last query is over
	onSessionExpired              // there is no session to send a hello in
	events           = iota
)

// String returns the event's name.
func (e event) String() string {
	return [events]string{
		"reset", "renew", "initiated", "confirmed", "query", "last query", "received all", "received part", "received reset",
		"timeout", "session keys erased, no new handshake in 9 minutes",
	}[e]
}

// next is the transition function of the exchange.
func (s State) next(e event) State {
	switch e {
	case onReset, onRenew:
		return Idle
	case onInitiated:
		return Awaiting
	case onQuery:
		return Querying
	case onReceivedAll:
		return Settled
	case onReceivedReset:
		return Probing
	case onConfirmed:
		switch s {
		case Probing:
			return Querying
		case Unconfirmed, Settled:
			return Idle
		}
	case onLastQuery:
		if s == Querying {
			return Awaiting
		}
	case onReceivedPart:
		switch s {
		case Idle, Awaiting, Querying:
			return Probing
		case Settled:
			return Unconfirmed
		}
	case onTimeout, onSessionExpired:
		switch s {
		case Awaiting, Querying:
			return Idle
		case Probing:
			return Unconfirmed
		}
	}
	return s
}
