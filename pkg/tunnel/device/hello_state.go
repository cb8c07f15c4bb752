// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// helloPause is the minimum time, in ns, between two hellos to one peer.
	helloPause = int64(250 * time.Millisecond)
	// helloTries is the number of queries, hellos that request an answer, in one round. helloRetry is the time between two
	// of them, in ns.
	helloTries = 3
	helloRetry = int64(time.Second)
	// helloWait is how long, in ns, an initiator waits for the responder's first hello.
	helloWait = helloTries * helloRetry
)

// helloState is the state of the capability exchange with one peer in the current session.
type helloState uint8

const (
	helloIdle        helloState = iota // no hello in this session, and none expected
	helloAwaiting                      // waiting for the peer's first hello of this session
	helloQuerying                      // sending queries until that hello arrives
	helloProbing                       // hello received; querying whether our other source ports reach the peer
	helloUnconfirmed                   // hello received; the peer did not confirm our other source ports in time
	helloSettled                       // hello received; nothing left to query
	helloStates      = iota
)

// String returns the state's name.
func (s helloState) String() string {
	return [helloStates]string{"idle", "awaiting", "querying", "probing", "unconfirmed", "settled"}[s]
}

// received reports whether the peer has sent a hello in this session.
func (s helloState) received() bool { return s >= helloProbing }

// helloEvent is an input of the state machine.
type helloEvent uint8

const (
	helloReset          helloEvent = iota // the session ended, or the peer turned out to be a stock WireGuard
	helloRenew                            // addresses, ports or settings changed: everything must be queried again
	helloInitiated                        // our handshake is complete; a ropewalk responder sends the first hello
	helloConfirmed                        // the peer uses the session that it initiated; we send the first hello
	helloQuery                            // a round of queries begins
	helloLastQuery                        // the last query of the round was sent
	helloReceivedAll                      // a hello arrived that leaves nothing to query
	helloReceivedPart                     // a hello arrived that leaves something to query
	helloReceivedReset                    // as helloReceivedPart, and the peer has forgotten that it received from our ports
	helloTimeout                          // the wait for an answer to the last query is over
	helloSessionExpired                   // there is no session to send a hello in
	helloEvents         = iota
)

// String returns the event's name.
func (e helloEvent) String() string {
	return [helloEvents]string{
		"reset", "renew", "initiated", "confirmed", "query", "last query", "received all", "received part", "received reset",
		"timeout", "session keys erased, no new handshake in 9 minutes",
	}[e]
}

// next is the transition function of the exchange.
func (s helloState) next(e helloEvent) helloState {
	switch e {
	case helloReset, helloRenew:
		return helloIdle
	case helloInitiated:
		return helloAwaiting
	case helloQuery:
		return helloQuerying
	case helloReceivedAll:
		return helloSettled
	case helloReceivedReset:
		return helloProbing
	case helloConfirmed:
		switch s {
		case helloProbing:
			return helloQuerying
		case helloUnconfirmed, helloSettled:
			return helloIdle
		}
	case helloLastQuery:
		if s == helloQuerying {
			return helloAwaiting
		}
	case helloReceivedPart:
		switch s {
		case helloIdle, helloAwaiting, helloQuerying:
			return helloProbing
		case helloSettled:
			return helloUnconfirmed
		}
	case helloTimeout, helloSessionExpired:
		switch s {
		case helloAwaiting, helloQuerying:
			return helloIdle
		case helloProbing:
			return helloUnconfirmed
		}
	}
	return s
}

// helloExchange is one peer's state machine, its timers, and the contents of the last hello in each direction. It has no
// clock and does no I/O. Each handshake starts a new exchange: the initiator has signed its first message, so the responder
// sends a hello, and the initiator answers. A stock peer signs nothing and gets no hello. Peer.mu guards it.
type helloExchange struct {
	state    helloState
	ropewalk bool  // the peer accepts hellos: it has signed its initiation, or sent a hello
	tries    int   // queries left in this round
	deadline int64 // when the next query or the timeout is due, 0 for never
	sendAt   int64 // when a hello that came too soon after the last is due, 0 for never
	sentAt   int64 // when the last was sent, 0 for never
	sent     []byte

	remote    *wire.Hello // the peer's last, perhaps of an earlier session; noHello for none
	unknown   error       // why there is none, for people
	nat       error       // a *natError if the last hello shows a NAT
	localAddr netip.Addr  // the local address at which the last hello arrived
	plan      []uint16    // the source ports that the peer should use
}

// noHello is shared by all peers that have sent none, which are most of thousands. It does not change.
var noHello = new(wire.Hello)

// handle applies an event to the state and its timers.
func (x *helloExchange) handle(e helloEvent) {
	first := !x.state.received()
	x.state = x.state.next(e)
	switch e {
	case helloReset, helloRenew, helloInitiated, helloSessionExpired:
		x.stopTimers()
	case helloQuery:
		x.tries = helloTries
	case helloReceivedAll:
		x.tries, x.deadline = 0, 0
	case helloReceivedPart, helloReceivedReset:
		if x.tries == 0 && (first || e == helloReceivedReset) {
			x.tries = helloTries
		}
	case helloTimeout:
		x.deadline = 0
	}
}

// stopTimers ends the round of queries.
func (x *helloExchange) stopTimers() { x.sendAt, x.tries, x.deadline = 0, 0, 0 }

// nextTimer returns when the next timer is due, 0 for never.
func (x *helloExchange) nextTimer() int64 {
	if x.sendAt != 0 && (x.deadline == 0 || x.sendAt < x.deadline) {
		return x.sendAt
	}
	return x.deadline
}

// querySent records that a query was sent.
func (x *helloExchange) querySent(now int64) {
	x.tries--
	x.deadline = now + helloRetry
	if x.tries == 0 {
		x.handle(helloLastQuery)
	}
}

// receive stores a hello of the peer and reports whether the peer has lost its knowledge of our other source ports, as it
// does when it restarts.
func (x *helloExchange) receive(h wire.Hello, nat error) (lost bool) {
	lost = x.remote.Heard && !h.Heard
	x.remote, x.ropewalk, x.nat = &h, true, nat
	switch {
	case h.Heard || !h.Gathers || nat != nil:
		x.handle(helloReceivedAll)
	case lost:
		x.handle(helloReceivedReset)
	default:
		x.handle(helloReceivedPart)
	}
	return lost
}

// offers returns the statement of the last hello about post-quantum exchanges.
func (x *helloExchange) offers() postquantum.Offers {
	switch {
	case x.remote == noHello:
		return postquantum.OffersUnknown
	case x.remote.PostQuantum:
		return postquantum.OffersExchange
	}
	return postquantum.OffersNone
}

// remotePorts returns the source ports that the peer may send from.
func (x *helloExchange) remotePorts() spread.Ports {
	return spread.Ports{First: x.remote.First, Last: x.remote.Last}
}
