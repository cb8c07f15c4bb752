// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"bytes"
	"io"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// tryIntervals are the times, in ns, that an offerer waits for an answer after each try. It sends the same key each time.
var tryIntervals = [...]int64{
	int64(250 * time.Millisecond), int64(500 * time.Millisecond), int64(time.Second), int64(2 * time.Second), int64(4 * time.Second),
	int64(8 * time.Second), int64(16 * time.Second), int64(32 * time.Second), int64(32 * time.Second),
}

const (
	// turnTries is the number of tries after which an offerer without an answer leaves its turn to others.
	turnTries = 4
	// repeatPause is the minimum time, in ns, between two sendings of the same answer.
	repeatPause = int64(200 * time.Millisecond)
	// answerBurst and answerInterval bound the exchanges that a peer can demand: so many at once, then one per interval, in ns. Without the burst
	// a peer that restarts twice would wait.
	answerBurst    = 3
	answerInterval = int64(30 * time.Second)
)

// State is the state of the exchange in the current session.
type State uint8

// The states.
const (
	Idle     State = iota // nothing to do here: there is no session, or the peer is the offerer
	Waiting               // this side is the offerer, and waits for the peer's hello or for a turn
	Offered               // the encapsulation key was sent
	Answered              // the ciphertext was sent
	Done                  // the key of the exchange is in the ring
	Failed                // until the next session
	states   = iota
)

// String returns the state's name.
func (s State) String() string {
	return [states]string{"idle", "waiting", "offered", "answered", "done", "failed"}[s]
}

// Offers is the statement about exchanges in the peer's last hello.
type Offers uint8

// The values of Offers.
const (
	OffersUnknown Offers = iota // there was no hello
	OffersNone
	OffersExchange
)

// Result is the end of an exchange, or the reason for which a message had no effect. The zero Result is none.
type Result uint8

// The results.
const (
	Completed Result = iota + 1 // a key is in the ring
	TimedOut                    // no answer to any try
	Mismatch                    // the tag is wrong, or the id is taken
	Malformed                   // an invalid key, or parts that contradict each other
	Limited                     // the peer demands too many exchanges: this one was not answered
	Glare                       // both sides offer at once: the peer's offer was ignored, as its public key is the larger
	results   = iota + 1
)

// Results is the number of values of Result, the zero Result included.
const Results = results

// String returns the name of the result in metrics.
func (r Result) String() string {
	return [results]string{"none", "completed", "timeout", "mismatch", "malformed", "limited", "glare"}[r]
}

// Actions are the actions that the owner of an Exchange takes after an event.
type Actions struct {
	// Send is the kind of Exchange.Message, whose parts are sent under the key pair of Session; 0 for nothing to send.
	Send    wire.KEMKind
	Session *Session
	// Upgrade asks for a handshake at once: the session is a base session, and there is a key now.
	Upgrade bool
	Result  Result
}

// Exchange is the state of the exchanges with one peer, and its Ring. The zero Exchange is ready after SetIdentity.
type Exchange struct {
	hidden
	Ring Ring

	local, remote noise.PublicKey
	state         State
	offers        Offers
	current       *Session // nil without a session

	keyPair keyPair // while offered
	tries   int     // of the key, while offered
	timer   int64   // when the next is due, while offered

	key        assembly // the peer's while it arrives, and while answered
	ciphertext assembly
	own        []byte   // our message: the key while offered, the ciphertext with its tag while answered
	answered   *Session // in which own was sent while answered
	sentAt     int64    // when it was last sent, while answered

	limitedTo int64 // when all exchanges that were answered are paid for (answerInterval each)
}

// SetIdentity sets the static public keys, and erases everything that was made with others.
func (x *Exchange) SetIdentity(local, remote noise.PublicKey) {
	x.Erase()
	x.local, x.remote = local, remote
}

// Erase erases all keys, and ends the exchange.
func (x *Exchange) Erase() {
	x.Ring.Erase()
	x.End()
}

// State returns the state.
func (x *Exchange) State() State { return x.state }

// Offers returns what the peer's last hello says.
func (x *Exchange) Offers() Offers { return x.offers }

// Message returns the message to send for Actions.Send. The caller must not change it.
func (x *Exchange) Message() []byte { return x.own }

// Begin makes s the current session: this side has authenticated a response, or the first data message, that was made with its keys. If they were
// made with a key of the ring, older keys end soon. If not, the peer has none of them, and all are erased. The exchange of the session before ends
// at both ends, so a key that was offered in it and arrives late has no effect.
func (x *Exchange) Begin(s *Session, now int64) {
	x.confirm(s, now)
	x.stop(s)
	if x.current != nil && x.current != s {
		x.current.Wipe()
	}
	x.current, x.state = s, Idle
	if s.initiator && !s.spent {
		x.state = Waiting
	}
}

// End ends the exchange: there is no session any more.
func (x *Exchange) End() {
	x.stop(nil)
	x.current, x.state = nil, Idle
}

// SetOffers records what the peer's hello says, OffersUnknown if all knowledge of the peer was discarded.
func (x *Exchange) SetOffers(o Offers) {
	x.offers = o
	if o == OffersNone && x.state == Offered {
		x.fail()
	}
}

// WantsTurn reports whether the exchange may begin as soon as there are resources for it.
func (x *Exchange) WantsTurn() bool { return x.state == Waiting && x.offers == OffersExchange }

// HoldsTurn reports whether the exchange still takes resources: it has begun, and was not repeated often.
func (x *Exchange) HoldsTurn() bool { return x.state == Offered && x.tries <= turnTries }

// Offer begins the exchange, if WantsTurn. rand must be good: 64 of its bytes become the secret of the exchange. The error is rand's.
func (x *Exchange) Offer(rand io.Reader, now int64) (a Actions, err error) {
	if !x.WantsTurn() {
		return a, nil
	}
	noise.Secretly(func() { x.own, err = newKeyPair(&x.keyPair, rand) })
	if err != nil {
		x.fail()
		return a, err
	}
	x.state, x.tries = Offered, 0
	return x.sendKey(now), nil
}

// Next returns when Fire is due, 0 for never.
func (x *Exchange) Next() int64 {
	at := x.Ring.Next()
	if x.state == Offered && (at == 0 || x.timer < at) {
		at = x.timer
	}
	return at
}

// Fire does what is due.
func (x *Exchange) Fire(now int64) Actions {
	x.Ring.Expire(now)
	switch {
	case x.state != Offered || now < x.timer:
		return Actions{}
	case x.tries == len(tryIntervals):
		x.fail()
		return Actions{Result: TimedOut}
	}
	return x.sendKey(now)
}

func (x *Exchange) sendKey(now int64) Actions {
	x.timer = now + tryIntervals[x.tries]
	x.tries++
	return Actions{Send: wire.KEMKey, Session: x.current}
}

// Receive takes a part that has arrived under the key pair of s. That need not be the current session: if handshakes have crossed, each end may use
// its own.
func (x *Exchange) Receive(s *Session, p *wire.KEMPart, now int64) Actions {
	if s.key.Named { // only Begin erases keys: a part of a base session that has crossed ours may be late
		x.confirm(s, now)
	}
	switch {
	case p.Kind == wire.KEMCiphertext && x.state == Offered && s == x.current:
		return x.receiveCiphertext(p, now)
	case p.Kind == wire.KEMKey && x.state == Answered && s == x.answered:
		return x.answerAgain(p, now)
	case p.Kind == wire.KEMKey && x.answers(s):
		return x.receiveKey(s, p, now)
	}
	return Actions{}
}

// answers reports whether a key in s is answered. In a session that has crossed the current one it may be late: the current one has achieved more.
func (x *Exchange) answers(s *Session) bool {
	late := s != x.current && (x.state == Done || x.current != nil && x.current.key.Named && !s.key.Named)
	return !s.initiator && !s.spent && !late
}

// receiveCiphertext completes our exchange.
func (x *Exchange) receiveCiphertext(p *wire.KEMPart, now int64) Actions {
	switch x.ciphertext.add(x.current, p) {
	case incomplete:
		return Actions{}
	case contradiction:
		x.fail()
		return Actions{Result: Malformed}
	}
	r, ok := x.current.finish(&x.local, &x.remote, &x.keyPair, x.own, x.ciphertext.data)
	ok = ok && x.Ring.add(Entry{Key: r.key, ID: r.id, At: now, Certain: true})
	clear(r.key[:])
	x.fail()
	if !ok {
		return Actions{Result: Mismatch}
	}
	x.state = Done
	return Actions{Result: Completed, Upgrade: !x.current.key.Named}
}

// receiveKey answers an exchange of the peer.
func (x *Exchange) receiveKey(s *Session, p *wire.KEMPart, now int64) Actions {
	switch x.key.add(s, p) {
	case incomplete:
		return Actions{}
	case contradiction:
		return x.refuse(s, Malformed)
	}
	switch {
	case x.state == Offered && bytes.Compare(x.local[:], x.remote[:]) < 0:
		x.key.clear()
		return Actions{Result: Glare}
	case !x.payAnswer(now):
		x.key.clear()
		return Actions{Result: Limited}
	}
	message, r, ok := s.answer(&x.remote, &x.local, x.key.data)
	if !ok {
		return x.refuse(s, Malformed)
	}
	ok = x.Ring.add(Entry{Key: r.key, ID: r.id, At: now})
	clear(r.key[:])
	if !ok {
		return x.refuse(s, Mismatch)
	}
	x.clearOffer()
	s.Wipe()
	x.state, x.own, x.answered, x.sentAt = Answered, message, s, now
	return Actions{Send: wire.KEMCiphertext, Session: s, Result: Completed}
}

// refuse ends the peer's exchange in s without an answer. Ours in another session goes on.
func (x *Exchange) refuse(s *Session, why Result) Actions {
	x.key.clear()
	s.Wipe()
	if s == x.current {
		x.state = Failed
	}
	return Actions{Result: why}
}

// payAnswer reports whether the peer may have another answer.
func (x *Exchange) payAnswer(now int64) bool {
	paid := max(x.limitedTo, now)
	if paid-now > (answerBurst-1)*answerInterval {
		return false
	}
	x.limitedTo = paid + answerInterval
	return true
}

// answerAgain repeats the answer, since the peer repeats its key.
func (x *Exchange) answerAgain(p *wire.KEMPart, now int64) Actions {
	if x.key.add(x.answered, p) == contradiction {
		s := x.answered
		x.stop(nil)
		x.state = Idle
		return x.refuse(s, Malformed)
	}
	if now-x.sentAt < repeatPause {
		return Actions{}
	}
	x.sentAt = now
	return Actions{Send: wire.KEMCiphertext, Session: x.answered}
}

// confirm records once that both ends have the session.
func (x *Exchange) confirm(s *Session, now int64) {
	switch {
	case s.confirmed:
		return
	case s.key.Named:
		x.Ring.Confirm(s.key.ID, now)
	default:
		x.Ring.Erase()
	}
	s.confirmed = true
}

// fail ends our exchange in the current session.
func (x *Exchange) fail() {
	x.stop(nil)
	x.state = Failed
	if x.current != nil {
		x.current.Wipe()
	}
}

// stop overwrites all secrets and messages, except parts that have arrived in a session, nil for none.
func (x *Exchange) stop(except *Session) {
	x.clearOffer()
	x.own, x.answered, x.sentAt = nil, nil, 0
	if except == nil || x.key.session != except {
		x.key.clear()
	}
}

func (x *Exchange) clearOffer() {
	x.keyPair, x.tries, x.timer = keyPair{}, 0, 0
	x.ciphertext.clear()
}
