// SPDX-License-Identifier: Apache-2.0

package hello

import (
	"bytes"
	"errors"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// The reasons why there is no hello of a peer, for people.
var (
	ErrNoSession = errors.New("there is no session yet")
	ErrNoHello   = errors.New("the peer sent no hello: it does not run ropewalk, or its spread is off")
	ErrAwaiting  = errors.New("waiting for the peer's hello")
)

// Exchange is the state machine for one peer, its timers, and the contents of the last hello in each
// direction. Each handshake starts a new exchange: the initiator has signed its first message, so the
// responder sends a hello, and the initiator answers. A stock peer signs nothing and gets no hello. The
// caller's lock guards it.
type Exchange struct {
	Ropewalk  bool        // the peer accepts hellos: it has signed its initiation, or sent a hello
	Remote    *wire.Hello // the peer's last, perhaps of an earlier session; None for none
	Unknown   error       // why there is none
	NAT       error       // a *natError if the last hello shows a NAT
	LocalAddr netip.Addr  // the local address at which the last hello arrived
	Plan      []uint16    // the source ports that the peer should use

	state    State
	tries    int   // queries left in this round
	deadline int64 // when the next query or the timeout is due, 0 for never
	sendAt   int64 // when a hello that came too soon after the last is due, 0 for never
	sentAt   int64 // when the last was sent, 0 for never
	sent     []byte
}

// None is shared by all peers that have sent no hello, which are most of thousands. It does not change.
var None = new(wire.Hello)

// State returns the state.
func (x *Exchange) State() State { return x.state }

// Reset discards all knowledge of the peer.
func (x *Exchange) Reset(why error) {
	*x = Exchange{Remote: None, Unknown: why, sentAt: x.sentAt}
}

// Discard discards the confirmations of the peer and, if either side has moved, what is known of the
// path from it. keys says that there is a session, unconfirmed that one waits for its first message.
func (x *Exchange) Discard(moved, keys, unconfirmed bool) {
	if x.Remote != None {
		x.Remote.Heard = false
		if moved {
			x.Remote.Plan = nil
		}
	}
	if moved {
		x.NAT, x.LocalAddr, x.Plan = nil, netip.Addr{}, nil
	}
	awaits := x.state == Awaiting && !x.Ropewalk // of a responder that may be a ropewalk: it sends the first hello
	if !awaits {
		x.handle(onRenew)
	}
	switch {
	case x.Remote != None:
	case !keys && unconfirmed: // the reason that the initiation has set stays
	case !keys:
		x.Unknown = ErrNoSession
	case awaits || x.Ropewalk:
		x.Unknown = ErrAwaiting
	default:
		x.Unknown = ErrNoHello
	}
}

// Confirm is called after the peer has used the session that it initiated with a signed initiation.
func (x *Exchange) Confirm() {
	x.Ropewalk = true
	x.handle(onConfirmed)
}

// Await waits for the peer's hello: our handshake is complete.
func (x *Exchange) Await(now int64) {
	x.handle(onInitiated)
	x.deadline = now + Wait
	x.expect()
}

// Query begins a round of queries. It reports whether the peer's hello is not known.
func (x *Exchange) Query() (unknown bool) {
	x.handle(onQuery)
	return x.expect()
}

// expect records that a hello is expected, if none is known.
func (x *Exchange) expect() bool {
	if x.Remote != None {
		return false
	}
	x.Unknown = ErrAwaiting
	return true
}

// Expire is called if there is no session to send a hello in.
func (x *Exchange) Expire() { x.handle(onSessionExpired) }

// Due is the task of a timer.
type Due uint8

// The tasks.
const (
	Nothing Due = iota
	Send        // a hello
	Blocked     // note that messages from our other source ports do not reach the peer, which sends hellos
	Extend      // call Extend: the peer may not have sent anything yet
	Stock       // call Reset: the peer sends no hellos
)

// Fire returns the task that is due. silent says that the responder has not used the session that we
// initiated. Until then it sends no hello.
func (x *Exchange) Fire(now int64, silent bool) Due {
	switch {
	case x.sendAt != 0 && now >= x.sendAt:
		return Send
	case x.deadline == 0 || now < x.deadline:
		return Nothing
	case x.tries > 0:
		return Send
	case x.state.received():
		x.handle(onTimeout)
		return Blocked
	case silent:
		return Extend
	}
	return Stock
}

// Extend waits for as long again as the session is old: a server may never send first.
func (x *Exchange) Extend(now, created int64) { x.deadline = now + max(Wait, now-created) }

// Postpone gives the peer the whole time to send a hello, if one is awaited.
func (x *Exchange) Postpone(now int64) {
	if x.deadline != 0 {
		x.deadline = max(x.deadline, now+Wait)
	}
}

// Delay reports whether the last hello was sent less than Pause ago. If so, Fire asks for one later.
func (x *Exchange) Delay(now int64) bool {
	delay := x.sentAt != 0 && now-x.sentAt < Pause
	if delay {
		x.sendAt = x.sentAt + Pause
	}
	return delay
}

// Sent records the hello that is being sent, without regard of NoReply, and returns it. query says that
// it is one of a round of queries, so that it requests an answer.
func (x *Exchange) Sent(h *wire.Hello, now int64) (sent []byte, query bool) {
	x.sent, x.sentAt, x.sendAt = wire.AppendHello(x.sent[:0], h), now, 0
	if query = x.tries > 0; query {
		x.tries--
		x.deadline = now + retry
		if x.tries == 0 {
			x.handle(onLastQuery)
		}
	}
	return x.sent, query
}

// Differs reports whether the hello to send differs from the last one sent.
func (x *Exchange) Differs(h *wire.Hello) bool { return !bytes.Equal(x.sent, wire.AppendHello(nil, h)) }

// handle applies an event to the state and its timers.
func (x *Exchange) handle(e event) {
	first := !x.state.received()
	x.state = x.state.next(e)
	switch e {
	case onReset, onRenew, onInitiated, onSessionExpired:
		x.sendAt, x.tries, x.deadline = 0, 0, 0
	case onQuery:
		x.tries = tries
	case onReceivedAll:
		x.tries, x.deadline = 0, 0
	case onReceivedPart, onReceivedReset:
		if x.tries == 0 && (first || e == onReceivedReset) {
			x.tries = tries
		}
	case onTimeout:
		x.deadline = 0
	}
}

// Next returns when Fire is due, 0 for never.
func (x *Exchange) Next() int64 {
	if x.sendAt != 0 && (x.deadline == 0 || x.sendAt < x.deadline) {
		return x.sendAt
	}
	return x.deadline
}

// Receive stores a hello of the peer. It reports whether the peer has lost its knowledge of our
// other source ports, as it does when it restarts.
func (x *Exchange) Receive(h wire.Hello, nat error) (lost bool) {
	lost = x.Remote.Heard && !h.Heard
	x.Remote, x.Ropewalk, x.NAT = &h, true, nat
	switch {
	case h.Heard || !h.Gathers || nat != nil:
		x.handle(onReceivedAll)
	case lost:
		x.handle(onReceivedReset)
	default:
		x.handle(onReceivedPart)
	}
	return lost
}

// Received reports whether the peer has sent a hello in this session.
func (x *Exchange) Received() bool { return x.state.received() }

// Ended reports whether the exchange of this session has a result. expected says that hellos
// decide.
func (x *Exchange) Ended(expected bool) bool {
	switch x.state {
	case Settled, Unconfirmed:
		return true
	case Idle:
		return !expected || errors.Is(x.Unknown, ErrNoHello)
	}
	return false
}

// Offers returns the statement of the last hello about post-quantum exchanges.
func (x *Exchange) Offers() postquantum.Offers {
	switch {
	case x.Remote == None:
		return postquantum.OffersUnknown
	case x.Remote.PostQuantum:
		return postquantum.OffersExchange
	}
	return postquantum.OffersNone
}

// Ports returns the source ports that the peer may send from.
func (x *Exchange) Ports() spread.Ports {
	return spread.Ports{First: x.Remote.First, Last: x.Remote.Last}
}
