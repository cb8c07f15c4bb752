// SPDX-License-Identifier: Apache-2.0

package pqexchange_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pqexchange"
	"github.com/ropewalk/ropewalk/test/expect"
)

const now = int64(time.Hour)

func newSession(t *testing.T, m *pqexchange.Machine, key postquantum.Key) pqexchange.Session {
	t.Helper()
	keys := &noise.Keys{Initiator: true}
	pair, err := session.NewKeypair(keys, now)
	if err != nil {
		t.Fatal(err)
	}
	s, data := m.Bind(keys, key)
	if !data {
		pair.Restrict()
	}
	return pqexchange.Session{Exchange: &s, Keys: pair}
}

func TestPeerWithoutMachineTakesNoPart(t *testing.T) {
	var m *pqexchange.Machine
	part := wire.AppendKEMPart(nil, wire.KEMKey, make([]byte, wire.KEMKeySize), 0)
	if why := m.Put(part, nil, now); why != drop.ExchangeUnwanted || len(m.Take()) != 0 {
		t.Errorf("a part was taken: %v", why)
	}
	m.SetIdentity(noise.PublicKey{1}, noise.PublicKey{2})
	m.SetOffers(postquantum.OffersExchange)
	m.HandshakeComplete()
	m.End()
	m.Erase()
	m.Restore([]postquantum.Entry{{ID: 1}}, time.Unix(1, 0))
	s := newSession(t, m, postquantum.Key{})
	if s.Restricted(now) || s.Exchange.Key().Named {
		t.Error("want a session that carries data, without a key")
	}
	a := m.Fire(s, now)
	if a.Expire || a.Downgrade || a.Send != 0 || m.Upgrade(s, now).Upgrade || m.Next(s, now) != 0 || m.GiveUp() {
		t.Errorf("want nothing to do, not %+v", a)
	}
	if stamp := (noise.Timestamp{}); m.Mark(stamp, false, now) != stamp || !m.Mark(stamp, true, now).IsSigned() {
		t.Error("want a mark of a ropewalk that announces itself, and of no other")
	}
	if len(m.Keys()) != 0 || !m.Had().IsZero() || m.Policy() != config.PostQuantumOff {
		t.Error("want no keys")
	}
}

// TestRestoreWithoutPolicyHasThePast: auto may be inactive. The process before may have forgotten the
// past after its first state.
func TestRestoreWithoutPolicyHasThePast(t *testing.T) {
	m := pqexchange.New(noise.PublicKey{1}, noise.PublicKey{2})
	for _, had := range []time.Time{time.Unix(1, 0), {}} {
		if m.Restore([]postquantum.Entry{{ID: 1}}, had); len(m.Keys()) != 0 || m.Had() != had {
			t.Errorf("got %d keys and %v, want none and %v", len(m.Keys()), m.Had(), had)
		}
	}
}

func TestRequiredSessionWithoutKeyExpires(t *testing.T) {
	m := pqexchange.New(noise.PublicKey{1}, noise.PublicKey{2})
	m.SetPolicy(config.PostQuantumRequired)
	s := newSession(t, m, postquantum.Key{})
	m.Begin(s, now, time.Unix(1, 0))
	if !s.Restricted(now) || m.Next(s, now) == 0 {
		t.Fatal("want a session without data, and a time when packets are dropped")
	}
	for at := m.Next(s, now); at < now+session.RejectAfterTime; at = m.Next(s, at) {
		if a := m.Fire(s, at); !a.Expire {
			t.Errorf("want the waiting packets dropped, not %+v", a)
		}
	}
}

func TestSessionsWithoutKeyAreADowngradeOnce(t *testing.T) {
	m := pqexchange.New(noise.PublicKey{1}, noise.PublicKey{2})
	m.SetPolicy(config.PostQuantumAuto)
	m.Restore(nil, time.Unix(1, 0))
	s := newSession(t, m, postquantum.Key{})
	m.Begin(s, now, time.Unix(2, 0))
	at := m.Next(s, now)
	if r := m.Report(config.PostQuantumAuto, s, nil, at-1); r.Downgraded || r.Active {
		t.Errorf("got %+v before the time of grace is over", r)
	}
	if a := m.Fire(s, at); !a.Downgrade {
		t.Error("want the downgrade reported")
	}
	if a := m.Fire(s, at); a.Downgrade || !m.Report(config.PostQuantumAuto, s, nil, at).Downgraded {
		t.Error("want it reported once, and in effect")
	}
}

// TestRepeatedPartWaitsOnce: thousands of offerers may repeat their parts before a worker has time.
func TestRepeatedPartWaitsOnce(t *testing.T) {
	m := pqexchange.New(noise.PublicKey{1}, noise.PublicKey{2})
	m.SetPolicy(config.PostQuantumAuto)
	key := make([]byte, wire.KEMKeySize)
	other := append(make([]byte, wire.KEMKeySize-1), 1)
	for _, message := range [][]byte{key, key, other, key} {
		for part := range wire.KEMParts {
			if why := m.Put(wire.AppendKEMPart(nil, wire.KEMKey, message, part), nil, now); why != drop.None {
				t.Fatal(why)
			}
		}
	}
	if n := len(m.Take()); n != wire.KEMParts+1 {
		t.Errorf("%d parts wait, want those of one message and the part that contradicts it", n)
	}
}

// TestUpgradeThatAppliesNoMoreLeavesTheTurn: the hello of the peer, or the end of the exchange, may come in the pause before it.
func TestUpgradeThatAppliesNoMoreLeavesTheTurn(t *testing.T) {
	for applies, want := range map[bool]pqexchange.Actions{
		true:  {Actions: postquantum.Actions{Upgrade: true}},
		false: {LeaveTurn: true},
	} {
		m, s := completed(t)
		at := m.Next(s, now)
		if !applies {
			m.Erase()
		}
		if got := m.Upgrade(s, at); got.Upgrade != want.Upgrade || got.LeaveTurn != want.LeaveTurn {
			t.Errorf("it applies: %v, got %+v, want %+v", applies, got, want)
		}
	}
}

// completed returns the Machine of an initiator whose exchange has completed in a session that has no key yet.
func completed(t *testing.T) (*pqexchange.Machine, pqexchange.Session) {
	t.Helper()
	initiator, responder := noise.PublicKey{1}, noise.PublicKey{2}
	m, peer := pqexchange.New(initiator, responder), pqexchange.New(responder, initiator)
	var s, far pqexchange.Session
	for _, end := range []struct {
		m         *pqexchange.Machine
		s         *pqexchange.Session
		initiator bool
	}{{m, &s, true}, {peer, &far, false}} {
		end.m.SetPolicy(config.PostQuantumAuto)
		keys := &noise.Keys{Initiator: end.initiator}
		pair, err := session.NewKeypair(keys, now)
		expect.NoError(t, err)
		bound, _ := end.m.Bind(keys, postquantum.Key{})
		*end.s = pqexchange.Session{Exchange: &bound, Keys: pair}
		end.m.SetOffers(postquantum.OffersExchange)
		end.m.Begin(*end.s, now, time.Unix(1, 0))
	}
	a, err := m.Offer(rand.Reader, func() bool { return true }, now)
	expect.NoError(t, err)
	a = passed(t, peer, far, a)
	if a = passed(t, m, s, a); !a.Upgrade || a.LeaveTurn {
		t.Fatalf("got %+v, want an upgrade that keeps the turn", a)
	}
	return m, s
}

// passed passes the parts of a message to a Machine, and returns the last result.
func passed(t *testing.T, m *pqexchange.Machine, in pqexchange.Session, a pqexchange.Actions) (result pqexchange.Actions) {
	t.Helper()
	for part := range wire.KEMParts {
		if why := m.Put(wire.AppendKEMPart(nil, a.Send, a.Message, part), in.Keys, now); why != drop.None {
			t.Fatal(why)
		}
	}
	for _, p := range m.Take() {
		result = m.Receive(in.Exchange, &p, now)
	}
	return result
}
