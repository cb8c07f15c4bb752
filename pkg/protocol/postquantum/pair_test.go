// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// pair simulates two ends with a network that loses, delays, reorders and repeats. Handshakes are modelled, not computed: a response carries the
// preshared key that it was made with, and fits if the initiator tries the same.
type pair struct {
	choose   func(n int) int // the next decision, less than n
	loss     int             // of 100
	a, b     *pairEnd
	inFlight []pairMessage
	now      int64
	number   int // of the last handshake

	exchanges, noFits, baseAfterKey int
	log                             []string
}

// pairEnd is one end as package device keeps it.
type pairEnd struct {
	name  string
	x     Exchange
	hello Offers // what this end's hellos say

	attempt   *pairAttempt
	lastSeen  int // number of the last accepted initiation
	current   *pairSession
	next      *pairSession
	previous  []*pairSession // at most 2, newest first
	derivedAt int64          // when the last session was
	hadKey    bool           // the last confirmed session had a key
}

type pairAttempt struct {
	number int
	key    Key
}

type pairSession struct {
	Session
	number  int
	created int64
	psk     noise.PresharedKey
}

// pairMessage is a message on its way. All but the first two members depend on the kind.
type pairMessage struct {
	kind   string // initiation, response, part, data
	to     *pairEnd
	number int
	named  bool
	id     uint16
	key    Key // of the responder
	psk    noise.PresharedKey
	part   wire.KEMPart
}

func newPair(choose func(int) int) *pair {
	p := &pair{choose: choose, now: t0, a: &pairEnd{name: "a"}, b: &pairEnd{name: "b"}}
	p.a.reset(noise.PublicKey{1}, noise.PublicKey{2})
	p.b.reset(noise.PublicKey{2}, noise.PublicKey{1})
	return p
}

// reset is a restart.
func (e *pairEnd) reset(local, remote noise.PublicKey) {
	seen := e.lastSeen
	*e = pairEnd{name: e.name, hello: OffersExchange, lastSeen: seen}
	e.x.SetIdentity(local, remote)
}

func (p *pair) other(e *pairEnd) *pairEnd {
	if e == p.a {
		return p.b
	}
	return p.a
}

func (p *pair) send(m pairMessage) { p.inFlight = append(p.inFlight, m) }

func (p *pair) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf("%d ms: ", (p.now-t0)/1e6)+fmt.Sprintf(format, args...))
}

func (p *pair) initiate(e *pairEnd) {
	p.number++
	id, named := e.x.Ring.Signal()
	e.attempt = &pairAttempt{number: p.number, key: Key{ID: id, Named: named}}
	p.note("%s initiates %d, names %v %04x, ring %v", e.name, p.number, named, id, e.x.Ring.Entries())
	p.send(pairMessage{kind: "initiation", to: p.other(e), number: p.number, named: named, id: id})
}

// keysOf returns a session whose exporter depends on what a handshake depends on.
func (p *pair) keysOf(number int, psk noise.PresharedKey, initiator bool, key Key) *pairSession {
	keys := noise.Keys{Initiator: initiator, Hash: [noise.KeySize]byte{byte(number), byte(number >> 8)}}
	noise.KDF((*[noise.KeySize]byte)(&psk), keys.Hash[:], (*[noise.KeySize]byte)(&keys.Exporter))
	return &pairSession{Session: NewSession(&keys, key), number: number, created: p.now, psk: psk}
}

func (p *pair) deliver(m pairMessage) {
	e := m.to
	switch m.kind {
	case "initiation":
		p.receiveInitiation(e, m)
	case "response":
		p.receiveResponse(e, m)
	default:
		p.receiveData(e, m)
	}
}

func (p *pair) receiveInitiation(e *pairEnd, m pairMessage) {
	if m.number <= e.lastSeen {
		return
	}
	e.lastSeen = m.number
	if e.attempt != nil && e == p.b { // the larger key yields
		e.attempt = nil
	}
	var psk noise.PresharedKey
	key := Key{}
	if mixed, ok := e.x.Ring.Effective(m.id, &psk); m.named && ok {
		psk, key = mixed, Key{ID: m.id, Named: true, At: e.x.Ring.Use(m.id)}
	}
	e.next = p.keysOf(m.number, psk, false, key)
	e.derivedAt = p.now
	p.note("%s answers %d with key %+v", e.name, m.number, key)
	p.send(pairMessage{kind: "response", to: p.other(e), number: m.number, psk: psk, key: key})
}

func (p *pair) receiveResponse(e *pairEnd, m pairMessage) {
	if e.attempt == nil || e.attempt.number != m.number {
		return
	}
	var psk noise.PresharedKey
	key := Key{}
	mixed, ok := e.x.Ring.Effective(e.attempt.key.ID, &psk)
	switch {
	case e.attempt.key.Named && ok && mixed == m.psk:
		psk, key = mixed, Key{ID: e.attempt.key.ID, Named: true, At: e.x.Ring.Use(e.attempt.key.ID)}
	case m.psk != psk:
		p.noFits++
		p.note("%s: no key fits response %d", e.name, m.number)
		return
	}
	excused := !e.attempt.key.Named // it was sent before the first exchange
	e.attempt = nil
	s := p.keysOf(m.number, psk, true, key)
	e.derivedAt = p.now
	if e.next != nil {
		e.previous = append([]*pairSession{e.next}, e.previous...)
		e.next = nil
	}
	p.begin(e, s, excused)
	p.send(pairMessage{kind: "data", to: p.other(e), number: m.number})
	p.act(e, Actions{})
}

// begin makes s the current session.
func (p *pair) begin(e *pairEnd, s *pairSession, excused bool) {
	if e.current != nil {
		e.previous = append([]*pairSession{e.current}, e.previous...)
	}
	e.previous = e.previous[:min(len(e.previous), 2)]
	e.current = s
	e.x.Begin(&s.Session, p.now)
	if e.hadKey && !s.Key().Named && !excused {
		p.baseAfterKey++
	}
	e.hadKey = s.Key().Named
	p.note("%s begins %d with key %+v, now %v", e.name, s.number, s.Key(), e.x.State())
}

func (p *pair) receiveData(e *pairEnd, m pairMessage) {
	s := e.session(m.number)
	if s == nil || p.now-s.created >= session.RejectAfterTime {
		return
	}
	e.x.SetOffers(p.other(e).hello)
	if s == e.next {
		e.next, e.attempt = nil, nil
		p.begin(e, s, true) // the initiator has begun it, and was checked
	}
	if m.kind == "part" {
		p.act(e, e.x.Receive(&s.Session, &m.part, p.now))
	} else {
		p.act(e, Actions{})
	}
}

func (e *pairEnd) session(number int) *pairSession {
	for _, s := range append([]*pairSession{e.current, e.next}, e.previous...) {
		if s != nil && s.number == number {
			return s
		}
	}
	return nil
}

// act does what a machine asks for.
func (p *pair) act(e *pairEnd, a Actions) {
	for range 2 {
		if a.Result == Completed {
			p.exchanges++
			p.note("%s completes an exchange: %v", e.name, e.x.Ring.Entries())
		}
		if a.Send != 0 {
			number := 0
			for _, s := range append([]*pairSession{e.current, e.next}, e.previous...) {
				if s != nil && &s.Session == a.Session {
					number = s.number
				}
			}
			for i := range wire.KEMParts {
				var part wire.KEMPart
				_ = wire.ParseKEMPart(wire.AppendKEMPart(nil, a.Send, e.x.Message(), i), &part)
				p.send(pairMessage{kind: "part", to: p.other(e), number: number, part: part})
			}
		}
		if a.Upgrade {
			p.initiate(e)
		}
		if !e.x.WantsTurn() {
			return
		}
		a, _ = e.x.Offer(rand.Reader, p.now)
	}
}

// fire runs the timers of an end.
func (p *pair) fire(e *pairEnd) {
	if at := e.x.Next(); at != 0 && at <= p.now {
		p.act(e, e.x.Fire(p.now))
	}
	if e.derivedAt != 0 && p.now-e.derivedAt >= 3*session.RejectAfterTime {
		e.derivedAt, e.current, e.next, e.previous, e.attempt = 0, nil, nil, nil, nil
		e.x.Ring.EraseUsed()
		e.x.End()
	}
}

// step makes one event. Restarts are allowed if restarts is set.
func (p *pair) step(restarts bool) {
	end := []*pairEnd{p.a, p.b}[p.choose(2)]
	switch n := p.choose(1000); {
	case n < 700 && len(p.inFlight) > 0:
		i := p.choose(min(len(p.inFlight), 4))
		m := p.inFlight[i]
		p.inFlight = slices.Delete(p.inFlight, i, i+1)
		if m.kind == "part" && p.choose(100) < 5 {
			p.send(m)
		}
		if p.choose(100) >= p.loss {
			p.deliver(m)
		}
	case n < 720:
		p.initiate(end)
	case n < 990:
		p.now += int64(50 * time.Millisecond)
	case n < 996:
		p.now += int64(p.choose(60)) * int64(time.Second)
	case n < 998 && restarts:
		p.note("%s restarts", end.name)
		end.reset(end.x.local, end.x.remote)
	case n < 999 && restarts:
		end.x.SetOffers(OffersUnknown)
	}
	p.fire(p.a)
	p.fire(p.b)
}

// settle lets the ends complete a handshake without loss. It returns false if two tries do not suffice.
func (p *pair) settle(e *pairEnd) bool {
	p.loss = 0
	for range 2 {
		p.inFlight = nil
		p.initiate(e)
		number := p.number
		for len(p.inFlight) > 0 && e.current.numberIs() < number {
			m := p.inFlight[0]
			p.inFlight = p.inFlight[1:]
			p.deliver(m)
		}
		if e.current.numberIs() == number {
			return true
		}
	}
	return false
}

func (s *pairSession) numberIs() int {
	if s == nil {
		return 0
	}
	return s.number
}

func (p *pair) check(t *testing.T, restarts bool) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf(format+"\n%s", append(args, strings.Join(p.log[max(0, len(p.log)-40):], "\n"))...)
	}
	if p.noFits > 0 {
		fail("in %d handshakes no key fits", p.noFits)
	}
	if !restarts && p.baseAfterKey > 0 {
		fail("without a restart a base session follows one with a key")
	}
	for _, e := range []*pairEnd{p.a, p.b} {
		if n := len(e.x.Ring.Entries()); n > MaxKeys {
			fail("%s has %d keys", e.name, n)
		}
	}
	if x, y := p.a.current, p.b.current; x != nil && y != nil && x.number == y.number && x.psk != y.psk {
		fail("the ends of session %d have different preshared keys", x.number)
	}
}

func TestPairKeepsItsPromises(t *testing.T) {
	seeds := 25
	if testing.Short() {
		seeds = 5
	}
	for _, loss := range []int{0, 10, 40} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("loss %d restarts %v", loss, restarts), func(t *testing.T) {
				t.Parallel()
				exchanges := 0
				for seed := range uint64(seeds) {
					r := mrand.New(mrand.NewPCG(seed, uint64(loss)))
					p := newPair(r.IntN)
					p.loss = loss
					for range 3000 {
						p.step(restarts)
						p.check(t, restarts)
					}
					for _, e := range []*pairEnd{p.a, p.b} {
						if !p.settle(e) {
							t.Fatalf("seed %d: no handshake completes in two tries\n%s", seed, strings.Join(p.log[max(0, len(p.log)-40):], "\n"))
						}
					}
					p.check(t, restarts)
					exchanges += p.exchanges
				}
				if exchanges < 10*seeds {
					t.Errorf("got %d exchanges in %d runs, want more", exchanges, seeds)
				}
			})
		}
	}
}

// FuzzPair checks the same for decisions that the fuzzer makes.
func FuzzPair(f *testing.F) {
	f.Add([]byte{0, 0, 0})
	r := mrand.New(mrand.NewPCG(1, 1))
	for range 4 {
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		restarts := len(b) > 0 && b[0]&1 != 0
		p := newPair(func(n int) int {
			if len(b) < 2 {
				b = nil
				return 0
			}
			v := (int(b[0])<<8 | int(b[1])) % n
			b = b[2:]
			return v
		})
		p.loss = 20
		for len(b) > 0 {
			p.step(restarts)
			p.check(t, restarts)
		}
		for _, e := range []*pairEnd{p.a, p.b} {
			if !p.settle(e) {
				t.Fatal("no handshake completes in two tries")
			}
		}
	})
}
