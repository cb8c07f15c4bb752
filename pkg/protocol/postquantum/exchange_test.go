// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// ends returns two ends of which a has the smaller public key.
func ends() (a, b *Exchange) {
	small, large := noise.PublicKey{1}, noise.PublicKey{2}
	a, b = new(Exchange), new(Exchange)
	a.SetIdentity(small, large)
	b.SetIdentity(large, small)
	return a, b
}

// sessionOf returns the two ends of session n, whose initiator's is the first.
func sessionOf(n byte, key Key) (initiator, responder *Session) {
	keys := noise.Keys{Exporter: noise.SessionKey{n, 1}, Hash: [noise.KeySize]byte{n, 2}}
	theirs := NewSession(&keys, key)
	keys.Initiator = true
	ours := NewSession(&keys, key)
	return &ours, &theirs
}

// base begins a base session of which from is the initiator, and says that both take part.
func base(from, to *Exchange, n byte) (initiator, responder *Session) {
	initiator, responder = sessionOf(n, Key{})
	from.Begin(initiator, t0)
	to.Begin(responder, t0)
	from.SetOffers(OffersExchange)
	to.SetOffers(OffersExchange)
	return initiator, responder
}

// offer begins the exchange, and returns the key.
func offer(t testing.TB, x *Exchange, now int64) []byte {
	t.Helper()
	a, err := x.Offer(rand.Reader, now)
	if err != nil || a.Send != wire.KEMKey || a.Session != x.current {
		t.Fatalf("offering: got %+v and error %v, want a key", a, err)
	}
	return bytes.Clone(x.Message())
}

// parts returns the parts of a message as they arrive.
func parts(t testing.TB, kind wire.KEMKind, message []byte) (list []*wire.KEMPart) {
	t.Helper()
	for i := range wire.KEMParts {
		p := new(wire.KEMPart)
		if err := wire.ParseKEMPart(wire.AppendKEMPart(nil, kind, message, i), p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// receive hands all parts of a message over, and returns the actions of the last.
func receive(t testing.TB, x *Exchange, s *Session, kind wire.KEMKind, message []byte, now int64) (a Actions) {
	t.Helper()
	for i, p := range parts(t, kind, message) {
		if a = x.Receive(s, p, now); i < wire.KEMParts-1 && a != (Actions{}) {
			t.Fatalf("part %d alone: got %+v, want nothing", i, a)
		}
	}
	return a
}

// exchangeOnce makes one exchange, and checks both rings.
func exchangeOnce(t testing.TB, from, to *Exchange, mine, theirs *Session, now int64) {
	t.Helper()
	key := offer(t, from, now)
	a := receive(t, to, theirs, wire.KEMKey, key, now)
	if a != (Actions{Send: wire.KEMCiphertext, Session: theirs, Result: Completed}) {
		t.Fatalf("after the key: got %+v, want a ciphertext", a)
	}
	a = receive(t, from, mine, wire.KEMCiphertext, to.Message(), now)
	if want := (Actions{Result: Completed, Upgrade: !mine.Key().Named}); a != want {
		t.Fatalf("after the ciphertext: got %+v, want %+v", a, want)
	}
}

func TestExchangeGivesBothEndsOneKey(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	if a.State() != Waiting || !a.WantsTurn() || b.State() != Idle || b.WantsTurn() {
		t.Fatalf("in a new session: got %v and %v, want waiting and idle", a.State(), b.State())
	}
	exchangeOnce(t, a, b, mine, theirs, t0)
	if a.State() != Done || b.State() != Answered {
		t.Errorf("got %v and %v, want done and answered", a.State(), b.State())
	}
	x, y := a.Ring.Entries(), b.Ring.Entries()
	if len(x) != 1 || len(y) != 1 || x[0].Key != y[0].Key || x[0].ID != y[0].ID || !x[0].Certain || y[0].Certain {
		t.Fatalf("got rings %+v and %+v, want the same key, certain at the offerer alone", x, y)
	}
	if a.keyPair != (keyPair{}) || a.own != nil || a.ciphertext.data != nil || mine.exporter != (noise.SessionKey{}) || theirs.exporter != (noise.SessionKey{}) {
		t.Error("secrets or messages of the exchange are left")
	}
	psk := noise.PresharedKey{3}
	e, _ := a.Ring.Effective(x[0].ID, &psk)
	if f, ok := b.Ring.Effective(x[0].ID, &psk); !ok || e != f {
		t.Error("the effective keys differ")
	}
}

// TestEachStateWithEachEvent is the table of states.
func TestEachStateWithEachEvent(t *testing.T) {
	const seconds = int64(time.Second)
	for _, tc := range []struct {
		state, event string
		want         State
		actions      string // of the last event
	}{
		{"idle", "session of ours", Waiting, ""},
		{"idle", "session of the peer", Idle, ""},
		{"idle", "end", Idle, ""},
		{"idle", "hello with the flag", Idle, ""},
		{"idle", "hello without", Idle, ""},
		{"idle", "timer", Idle, ""},
		{"idle", "key", Answered, "send ciphertext, completed"},
		{"idle", "key beyond the limit", Idle, "limited"},
		{"idle", "invalid key", Failed, "malformed"},
		{"idle", "contradicting key", Failed, "malformed"},
		{"idle", "ciphertext", Idle, ""},
		{"waiting", "session of ours", Waiting, ""},
		{"waiting", "session of the peer", Idle, ""},
		{"waiting", "end", Idle, ""},
		{"waiting", "hello with the flag", Waiting, ""},
		{"waiting", "hello without", Waiting, ""},
		{"waiting", "turn", Offered, "send key"},
		{"waiting", "timer", Waiting, ""},
		{"waiting", "key", Answered, "send ciphertext, completed"}, // in a session of the peer
		{"waiting", "key in our session", Waiting, ""},
		{"waiting", "key beyond the limit", Waiting, "limited"},
		{"waiting", "invalid key", Waiting, "malformed"},
		{"waiting", "ciphertext", Waiting, ""},
		{"offered", "session of ours", Waiting, ""},
		{"offered", "session of the peer", Idle, ""},
		{"offered", "end", Idle, ""},
		{"offered", "hello with the flag", Offered, ""},
		{"offered", "hello without", Failed, ""},
		{"offered", "turn", Offered, ""},
		{"offered", "timer", Offered, "send key"},
		{"offered", "last timer", Failed, "timeout"},
		{"offered", "ciphertext", Done, "completed, upgrade"},
		{"offered", "ciphertext in another session", Offered, ""},
		{"offered", "wrong tag", Failed, "mismatch"},
		{"offered", "wrong ciphertext", Failed, "mismatch"},
		{"offered", "contradicting ciphertext", Failed, "malformed"},
		{"offered", "key", Offered, "glare"},
		{"offered by the larger", "key", Answered, "send ciphertext, completed"},
		{"offered by the larger", "key beyond the limit", Offered, "limited"},
		{"answered", "session of ours", Waiting, ""},
		{"answered", "session of the peer", Idle, ""},
		{"answered", "end", Idle, ""},
		{"answered", "hello without", Answered, ""},
		{"answered", "same key at once", Answered, ""},
		{"answered", "same key later", Answered, "send ciphertext"},
		{"answered", "other key", Failed, "malformed"},
		{"answered", "ciphertext", Answered, ""},
		{"done", "session of ours", Waiting, ""},
		{"done", "session of the peer", Idle, ""},
		{"done", "end", Idle, ""},
		{"done", "hello without", Done, ""},
		{"done", "turn", Done, ""},
		{"done", "timer", Done, ""},
		{"done", "ciphertext", Done, ""},
		{"done", "key", Done, ""}, // in another session, of the peer
		{"done", "key in our session", Done, ""},
		{"failed", "session of ours", Waiting, ""},
		{"failed", "session of the peer", Idle, ""},
		{"failed", "end", Idle, ""},
		{"failed", "hello with the flag", Failed, ""},
		{"failed", "turn", Failed, ""},
		{"failed", "timer", Failed, ""},
		{"failed", "key", Answered, "send ciphertext, completed"},
		{"failed", "ciphertext", Failed, ""},
	} {
		t.Run(tc.state+", "+tc.event, func(t *testing.T) {
			a, b := ends()
			x, y := a, b // x is under test
			if strings.HasSuffix(tc.state, "larger") {
				x, y = b, a
			}
			older, olderTheirs := sessionOf(9, Key{}) // that the peer has initiated
			y.Begin(older, t0)
			if tc.state == "idle" || tc.state == "answered" { // else handshakes have crossed
				x.Begin(olderTheirs, t0)
			}
			x.SetOffers(OffersExchange)
			y.SetOffers(OffersExchange)
			mine, theirs := sessionOf(1, Key{})
			now := t0 + seconds
			key := offer(t, y, t0)
			if tc.state != "idle" && tc.state != "answered" {
				x.Begin(mine, t0)
			}
			switch strings.Fields(tc.state)[0] {
			case "offered":
				offer(t, x, t0)
			case "answered":
				receive(t, x, olderTheirs, wire.KEMKey, key, now)
			case "done":
				z := new(Exchange)
				z.SetIdentity(y.local, y.remote)
				z.Begin(theirs, t0)
				exchangeOnce(t, x, z, mine, theirs, t0)
			case "failed":
				offer(t, x, t0)
				x.SetOffers(OffersNone)
				x.SetOffers(OffersExchange)
			}
			var got Actions
			event := tc.event
			if strings.HasSuffix(event, "beyond the limit") {
				x.limitedTo = now + 61*seconds
				event = "key"
			}
			if strings.Contains(event, "ciphertext") || event == "wrong tag" {
				got = feedCiphertext(t, x, y, event, mine, theirs, olderTheirs, now)
				event = ""
			}
			switch event {
			case "session of ours":
				ours, _ := sessionOf(2, Key{})
				x.Begin(ours, now)
			case "session of the peer":
				_, theirs := sessionOf(2, Key{})
				x.Begin(theirs, now)
			case "end":
				x.End()
			case "hello with the flag":
				x.SetOffers(OffersExchange)
			case "hello without":
				x.SetOffers(OffersNone)
			case "turn":
				got, _ = x.Offer(rand.Reader, now)
			case "timer":
				got = x.Fire(now)
			case "last timer":
				for i := range len(tryIntervals) {
					got = x.Fire(now + int64(i)*100*seconds)
				}
			case "key":
				got = receive(t, x, olderTheirs, wire.KEMKey, key, now)
			case "same key later":
				got = x.Receive(olderTheirs, parts(t, wire.KEMKey, key)[2], now+repeatPause)
			case "same key at once":
				got = receive(t, x, olderTheirs, wire.KEMKey, key, now)
			case "key in our session":
				got = receive(t, x, mine, wire.KEMKey, key, now)
			case "invalid key":
				got = receive(t, x, olderTheirs, wire.KEMKey, bytes.Repeat([]byte{0xff}, wire.KEMKeySize), now)
			case "contradicting key", "other key":
				x.Receive(olderTheirs, parts(t, wire.KEMKey, key)[0], now)
				other := bytes.Clone(key)
				other[5] ^= 1
				got = x.Receive(olderTheirs, parts(t, wire.KEMKey, other)[0], now)
			case "":
			default:
				t.Fatal("no such event")
			}
			if x.State() != tc.want || describe(got) != tc.actions {
				t.Errorf("got %v and %q, want %v and %q", x.State(), describe(got), tc.want, tc.actions)
			}
			if x.State() != Offered && (x.keyPair != (keyPair{}) || x.timer != 0) {
				t.Error("the key pair or the timer is left")
			}
			if s := x.State(); s != Offered && s != Answered && x.own != nil {
				t.Error("a message is left")
			}
		})
	}
}

// feedCiphertext answers the offer of x, if there is one, and changes the answer.
func feedCiphertext(t *testing.T, x, y *Exchange, event string, mine, theirs, other *Session, now int64) Actions {
	t.Helper()
	message := make([]byte, wire.KEMCiphertextSize)
	if x.State() == Offered {
		y.End()
		y.Begin(theirs, t0)
		receive(t, y, theirs, wire.KEMKey, x.Message(), t0)
		message = bytes.Clone(y.Message())
	}
	switch event {
	case "wrong tag":
		message[wire.KEMCiphertextSize-1] ^= 1
	case "wrong ciphertext":
		message[7] ^= 1
	case "contradicting ciphertext":
		x.Receive(mine, parts(t, wire.KEMCiphertext, message)[1], now)
		message[wire.KEMPartSize] ^= 1
		return x.Receive(mine, parts(t, wire.KEMCiphertext, message)[1], now)
	case "ciphertext in another session":
		return receive(t, x, other, wire.KEMCiphertext, message, now)
	}
	return receive(t, x, mine, wire.KEMCiphertext, message, now)
}

func describe(a Actions) string {
	var list []string
	switch a.Send {
	case wire.KEMKey:
		list = append(list, "send key")
	case wire.KEMCiphertext:
		list = append(list, "send ciphertext")
	}
	if a.Result != 0 {
		list = append(list, a.Result.String())
	}
	if a.Upgrade {
		list = append(list, "upgrade")
	}
	return strings.Join(list, ", ")
}

func TestPartsArriveInAnyOrderAndRepeatedly(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	key := parts(t, wire.KEMKey, offer(t, a, t0))
	for _, i := range []int{2, 2, 0, 2, 0} {
		if got := b.Receive(theirs, key[i], t0); got != (Actions{}) {
			t.Fatalf("without part 1: got %+v", got)
		}
	}
	if got := b.Receive(theirs, key[1], t0); got.Send != wire.KEMCiphertext {
		t.Fatalf("with all parts: got %+v, want a ciphertext", got)
	}
	ct := parts(t, wire.KEMCiphertext, b.Message())
	for _, i := range []int{1, 1, 2, 0} {
		a.Receive(mine, ct[i], t0)
	}
	if a.State() != Done {
		t.Errorf("got %v, want done", a.State())
	}
}

// TestPartsOfTwoSessionsMakeNoMessage: the parts of one key arrive under two sessions.
func TestPartsOfTwoSessionsMakeNoMessage(t *testing.T) {
	a, b := ends()
	base(a, b, 1)
	key := parts(t, wire.KEMKey, offer(t, a, t0))
	_, one := sessionOf(1, Key{})
	_, two := sessionOf(2, Key{})
	b.Begin(one, t0) // and two has crossed it
	b.Receive(one, key[0], t0)
	b.Receive(two, key[1], t0)
	if got := b.Receive(two, key[2], t0); got != (Actions{}) {
		t.Errorf("got %+v, want nothing", got)
	}
}

// TestLateKeyOfAnEarlierSessionIsIgnored: both ends have begun another session since.
func TestLateKeyOfAnEarlierSessionIsIgnored(t *testing.T) {
	a, b := ends()
	_, theirs := base(a, b, 1)
	key := offer(t, a, t0)
	base(b, a, 2)
	if got := receive(t, b, theirs, wire.KEMKey, key, t0); got != (Actions{}) || b.State() != Waiting {
		t.Errorf("got %+v in %v, want nothing in waiting", got, b.State())
	}
}

func TestSessionHasOneExchange(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	exchangeOnce(t, a, b, mine, theirs, t0)
	c, _ := ends()
	again, _ := sessionOf(1, Key{})
	c.Begin(again, t0)
	c.SetOffers(OffersExchange)
	b.Begin(theirs, t0) // the stored answer goes
	if got := receive(t, b, theirs, wire.KEMKey, offer(t, c, t0), t0); got != (Actions{}) {
		t.Errorf("a second exchange of the session: got %+v, want nothing", got)
	}
	a.Begin(mine, t0)
	if a.State() != Idle {
		t.Errorf("the offerer is %v in the same session, want idle", a.State())
	}
}

func TestTriesRepeatTheSameKey(t *testing.T) {
	a, b := ends()
	base(a, b, 1)
	key := offer(t, a, t0)
	for try := 2; ; try++ {
		now := a.Next()
		if a.Fire(now-1) != (Actions{}) {
			t.Fatalf("try %d before its time", try)
		}
		got := a.Fire(now)
		if got.Result == TimedOut {
			if try != 10 || a.State() != Failed {
				t.Errorf("got %v after %d tries, want failed after 9", a.State(), try-1)
			}
			break
		}
		if got.Send != wire.KEMKey || !bytes.Equal(a.Message(), key) {
			t.Fatalf("try %d: got %+v, want the same key", try, got)
		}
		if holds := try <= 4; a.HoldsTurn() != holds {
			t.Errorf("try %d: holds its turn %v, want %v", try, a.HoldsTurn(), holds)
		}
	}
	if a.Next() != 0 {
		t.Error("a timer is left")
	}
}

func TestAnswersAreLimited(t *testing.T) {
	_, b := ends()
	answered := func(n byte, now int64) bool {
		a, _ := ends()
		mine, theirs := sessionOf(n, Key{})
		a.Begin(mine, now)
		a.SetOffers(OffersExchange)
		b.Begin(theirs, now)
		return receive(t, b, theirs, wire.KEMKey, offer(t, a, now), now).Send == wire.KEMCiphertext
	}
	now := t0
	for n := range byte(3) {
		if !answered(n, now) {
			t.Fatalf("exchange %d of a burst is refused", n+1)
		}
	}
	if answered(3, now) {
		t.Error("a fourth exchange at once is answered")
	}
	now += answerInterval
	if !answered(4, now) || answered(5, now) {
		t.Error("after 30 s: want one more answer")
	}
}

func TestGlareLeavesOneExchange(t *testing.T) {
	a, b := ends()
	mineA, theirsA := sessionOf(1, Key{})
	mineB, theirsB := sessionOf(2, Key{})
	a.Begin(mineA, t0)
	b.Begin(mineB, t0)
	a.SetOffers(OffersExchange)
	b.SetOffers(OffersExchange)
	keyA, keyB := offer(t, a, t0), offer(t, b, t0)
	if got := receive(t, a, theirsB, wire.KEMKey, keyB, t0); got.Result != Glare || a.State() != Offered {
		t.Errorf("the smaller end: got %+v in %v, want glare in offered", got, a.State())
	}
	if got := receive(t, b, theirsA, wire.KEMKey, keyA, t0); got.Send != wire.KEMCiphertext || b.State() != Answered {
		t.Errorf("the larger end: got %+v in %v, want a ciphertext in answered", got, b.State())
	}
	receive(t, a, mineA, wire.KEMCiphertext, b.Message(), t0)
	if x, y := held(&a.Ring), held(&b.Ring); fmt.Sprint(x) != fmt.Sprint(y) || len(x) != 1 {
		t.Errorf("got keys %v and %v, want one and the same", x, y)
	}
}

// TestTakenIDFails: no two keys of a ring have one id.
func TestTakenIDFails(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	receive(t, b, theirs, wire.KEMKey, offer(t, a, t0), t0)
	a.Ring.add(Entry{ID: b.Ring.Entries()[0].ID})
	if got := receive(t, a, mine, wire.KEMCiphertext, b.Message(), t0); got.Result != Mismatch || a.State() != Failed || len(held(&a.Ring)) != 1 {
		t.Errorf("got %+v in %v, want a mismatch", got, a.State())
	}
}

func TestBaseSessionEmptiesTheRing(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	exchangeOnce(t, a, b, mine, theirs, t0)
	base(b, a, 2)
	if len(held(&a.Ring))+len(held(&b.Ring)) != 0 {
		t.Error("a key is left after a base session")
	}
}

func TestSessionWithKeyConfirmsIt(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	exchangeOnce(t, a, b, mine, theirs, t0)
	id := a.Ring.Entries()[0].ID
	mine, theirs = sessionOf(2, Key{ID: id, Named: true, At: t0})
	b.Begin(theirs, t0)
	if e := b.Ring.Entries(); len(e) != 1 || !e[0].Certain {
		t.Errorf("got %+v, want the key, certain", e)
	}
	a.Begin(mine, t0)
	exchangeOnce(t, a, b, mine, theirs, t0)
	if x, y := held(&a.Ring), held(&b.Ring); len(x) != 2 || fmt.Sprint(x) != fmt.Sprint(y) {
		t.Errorf("got keys %v and %v, want two each", x, y)
	}
	if signal, _ := b.Ring.Signal(); signal != id {
		t.Errorf("the answerer names the key that is uncertain")
	}
}

// TestKeyInUnconfirmedSessionIsAnswered: handshakes have crossed, and the peer uses its own session.
func TestKeyInUnconfirmedSessionIsAnswered(t *testing.T) {
	a, b := ends()
	mine, theirs := sessionOf(1, Key{})
	a.Begin(mine, t0)
	a.SetOffers(OffersExchange)
	ours, _ := sessionOf(2, Key{})
	b.Begin(ours, t0)
	if got := receive(t, b, theirs, wire.KEMKey, offer(t, a, t0), t0); got.Send != wire.KEMCiphertext || len(held(&b.Ring)) != 1 {
		t.Errorf("got %+v and keys %v, want a ciphertext and a key", got, held(&b.Ring))
	}
}

// TestLateKeyOfACrossedSessionIsIgnored: handshakes have crossed, and the exchange is complete in the other session.
func TestLateKeyOfACrossedSessionIsIgnored(t *testing.T) {
	a, b := ends()
	ours, crossed := sessionOf(2, Key{})
	b.Begin(ours, t0)
	b.SetOffers(OffersExchange)
	key := offer(t, b, t0)
	mine, theirs := base(a, b, 1)
	exchangeOnce(t, a, b, mine, theirs, t0)
	if got := receive(t, a, crossed, wire.KEMKey, key, t0); got != (Actions{}) || a.State() != Done || len(held(&a.Ring)) != 1 {
		t.Errorf("got %+v in %v and keys %v, want nothing in done, and the key", got, a.State(), held(&a.Ring))
	}
	mine, _ = sessionOf(3, Key{ID: a.Ring.Entries()[0].ID, Named: true, At: t0})
	a.Begin(mine, t0)
	if got := receive(t, a, crossed, wire.KEMKey, key, t0); got != (Actions{}) || a.State() != Waiting || len(held(&a.Ring)) != 1 {
		t.Errorf("in a session with a key: got %+v in %v and keys %v, want nothing", got, a.State(), held(&a.Ring))
	}
}

func TestOtherIdentityErasesEverything(t *testing.T) {
	a, b := ends()
	mine, theirs := base(a, b, 1)
	exchangeOnce(t, a, b, mine, theirs, t0)
	a.SetIdentity(noise.PublicKey{5}, noise.PublicKey{6})
	if len(held(&a.Ring)) != 0 || a.State() != Idle {
		t.Errorf("got keys %v and %v, want none and idle", held(&a.Ring), a.State())
	}
}

func TestRandomnessFailureEndsTheExchange(t *testing.T) {
	a, b := ends()
	base(a, b, 1)
	broken := errors.New("broken")
	if _, err := a.Offer(iotest.ErrReader(broken), t0); !errors.Is(err, broken) || a.State() != Failed {
		t.Errorf("got error %v in %v, want %v in failed", err, a.State(), broken)
	}
}
