// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// rekeyer makes handshakes between two ends, whose CPU time is that of both.
type rekeyer struct {
	i, r  side
	clock noise.Clock
}

func newRekeyer(b *testing.B) *rekeyer {
	b.Helper()
	identity := func() *noise.Identity {
		key, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		id, err := noise.NewIdentity(key)
		if err != nil {
			b.Fatal(err)
		}
		return id
	}
	k := &rekeyer{i: side{identity: identity()}, r: side{identity: identity()}}
	k.i.remote, _ = noise.NewRemote(k.i.identity, k.r.identity.Public())
	k.r.remote, _ = noise.NewRemote(k.r.identity, k.i.identity.Public())
	return k
}

// handshake makes one handshake as two devices do, MACs included.
func (k *rekeyer) handshake(b *testing.B) (ours, theirs noise.Keys) {
	b.Helper()
	noise.Secretly(func() {
		var initiation wire.Initiation
		var response wire.Response
		psk, base := noise.PresharedKey{1}, noise.PresharedKey{}
		initiator, responder := noise.NewInitiator(k.i.remote), noise.NewResponder(k.r.identity)
		if err := initiator.CreateInitiation(&initiation, 1, k.clock.Now(time.Now()), rand.Reader); err != nil {
			b.Fatal(err)
		}
		_ = noise.NewCookieJar(k.i.remote).AddMACs(initiation[:], 0)
		if _, reason := responder.ConsumeInitiation(initiation[:]); reason != drop.None {
			b.Fatal(reason)
		}
		if _, reason := responder.Authenticate(k.r.remote); reason != drop.None {
			b.Fatal(reason)
		}
		theirs, _ = responder.CreateResponse(&response, 2, &psk, rand.Reader)
		_ = noise.NewCookieJar(k.r.remote).AddMACs(response[:], 0)
		var reason drop.Reason
		if ours, reason = initiator.ConsumeResponse(response[:], &psk, &base); reason != drop.None {
			b.Fatal(reason)
		}
	})
	return ours, theirs
}

// BenchmarkRekey is the CPU time of both ends for a handshake, alone and with an exchange.
func BenchmarkRekey(b *testing.B) {
	b.Run("classical", func(b *testing.B) {
		k := newRekeyer(b)
		for b.Loop() {
			k.handshake(b)
		}
	})
	b.Run("post-quantum", func(b *testing.B) {
		k := newRekeyer(b)
		from, to := new(Exchange), new(Exchange)
		from.SetIdentity(k.i.identity.Public(), k.r.identity.Public())
		to.SetIdentity(k.r.identity.Public(), k.i.identity.Public())
		from.SetOffers(OffersExchange)
		now := t0
		for b.Loop() {
			now += 120 * int64(time.Second)
			ours, theirs := k.handshake(b)
			mine, other := NewSession(&ours, Key{}), NewSession(&theirs, Key{})
			from.Begin(&mine, now)
			to.Begin(&other, now)
			exchangeOnce(b, from, to, &mine, &other, now)
		}
	})
}
