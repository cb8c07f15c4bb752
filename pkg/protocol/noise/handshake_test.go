// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

var testTime = NewTimestamp(time.Unix(1_700_000_000, 123456789))

// side is one of two peers: its identity, and what it knows of the other.
type side struct {
	*Identity
	remote *Remote
}

// newSides returns two peers that know each other.
func newSides(t testing.TB) (initiator, responder side) {
	t.Helper()
	a, b := newIdentity(t, 1), newIdentity(t, 2)
	return side{a, newRemote(t, a, b.Public())}, side{b, newRemote(t, b, a.Public())}
}

func newIdentity(t testing.TB, seed byte) *Identity {
	t.Helper()
	key, err := NewPrivateKey(source(seed))
	if err != nil {
		t.Fatal(err)
	}
	id, err := NewIdentity(key)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newRemote(t testing.TB, local *Identity, public PublicKey) *Remote {
	t.Helper()
	remote, err := NewRemote(local, public)
	if err != nil {
		t.Fatal(err)
	}
	return remote
}

// initiate sends an initiation with index 0xa1.
func initiate(t testing.TB, from side) (*Initiator, *wire.Initiation) {
	t.Helper()
	i, msg := NewInitiator(from.remote), new(wire.Initiation)
	if err := i.CreateInitiation(msg, 0xa1, testTime, source(3)); err != nil {
		t.Fatal(err)
	}
	return i, msg
}

// accept takes an initiation as far as its timestamp.
func accept(t testing.TB, at side, msg []byte) *Responder {
	t.Helper()
	r := NewResponder(at.Identity)
	public, reason := r.ConsumeInitiation(msg)
	if reason != drop.None || public != at.remote.Public() {
		t.Fatalf("consuming the initiation: got drop reason %v, public key %v, want none, %v", reason, public, at.remote.Public())
	}
	now, reason := r.Authenticate(at.remote)
	if reason != drop.None || now != testTime {
		t.Fatalf("authenticating the initiation: got drop reason %v, timestamp %x, want none, %x", reason, now[:], testTime[:])
	}
	return r
}

// respond sends a response with index 0xb2.
func respond(t testing.TB, r *Responder, psk PresharedKey) (Keys, *wire.Response) {
	t.Helper()
	msg := new(wire.Response)
	keys, err := r.CreateResponse(msg, 0xb2, &psk, source(4))
	if err != nil {
		t.Fatal(err)
	}
	return keys, msg
}

func TestHandshakeGivesBothSidesTheSameKeys(t *testing.T) {
	for _, psk := range []PresharedKey{{}, {1, 2, 3}} {
		a, b := newSides(t)
		i, initiation := initiate(t, a)
		if i.sender != 0xa1 || i.ephemeral == nil {
			t.Errorf("after an initiation: sender index %#x, ephemeral key %v, want 0xa1 and a key", i.sender, i.ephemeral != nil)
		}
		theirs, response := respond(t, accept(t, b, initiation[:]), psk)
		ours, reason := i.ConsumeResponse(response[:], &psk)
		if reason != drop.None {
			t.Fatalf("consuming the response: got drop reason %v", reason)
		}
		if ours.Send != theirs.Recv || ours.Recv != theirs.Send || ours.Send == ours.Recv {
			t.Error("one side's send key is not the other's receive key")
		}
		if ours.Local != 0xa1 || ours.Remote != 0xb2 || theirs.Local != 0xb2 || theirs.Remote != 0xa1 {
			t.Errorf("got indices %#x, %#x and %#x, %#x, want 0xa1, 0xb2 and 0xb2, 0xa1", ours.Local, ours.Remote, theirs.Local, theirs.Remote)
		}
		if !ours.Initiator || theirs.Initiator {
			t.Errorf("got initiator %v and %v, want true and false", ours.Initiator, theirs.Initiator)
		}
		if i.ephemeral != nil {
			t.Error("the ephemeral key is kept after the response")
		}
	}
}

func TestPresharedKeyMayChangeDuringHandshake(t *testing.T) {
	a, b := newSides(t)
	i, initiation := initiate(t, a)
	r := accept(t, b, initiation[:])
	psk := PresharedKey{7} // set on both sides while the handshake is in flight
	_, response := respond(t, r, psk)
	if _, reason := i.ConsumeResponse(response[:], &PresharedKey{8}); reason != drop.HSInvalid {
		t.Errorf("response with another preshared key: got drop reason %v, want %v", reason, drop.HSInvalid)
	}
	if _, reason := i.ConsumeResponse(response[:], &psk); reason != drop.None {
		t.Errorf("response with the right preshared key: got drop reason %v, want none", reason)
	}
}

func TestResponseIsAcceptedOnce(t *testing.T) {
	a, b := newSides(t)
	i, initiation := initiate(t, a)
	_, response := respond(t, accept(t, b, initiation[:]), PresharedKey{})
	for n, want := range []drop.Reason{drop.None, drop.HSInvalid} {
		if _, reason := i.ConsumeResponse(response[:], &PresharedKey{}); reason != want {
			t.Errorf("the same response, call %d: got drop reason %v, want %v", n+1, reason, want)
		}
	}
}

func TestNewInitiationReplacesPrevious(t *testing.T) {
	a, b := newSides(t)
	i, initiation := initiate(t, a)
	_, response := respond(t, accept(t, b, initiation[:]), PresharedKey{})
	if err := i.CreateInitiation(initiation, 0xa1, testTime.next(), source(9)); err != nil {
		t.Fatal(err)
	}
	if _, reason := i.ConsumeResponse(response[:], &PresharedKey{}); reason != drop.HSInvalid {
		t.Errorf("response to an earlier initiation: got drop reason %v, want %v", reason, drop.HSInvalid)
	}
}

// flips returns b with one bit of byte at changed, for the lowest and the highest bit.
func flips(b []byte, at int) [][]byte {
	low, high := slices.Clone(b), slices.Clone(b)
	low[at] ^= 0x01
	high[at] ^= 0x80
	return [][]byte{low, high}
}

func TestEveryByteOfInitiationIsAuthenticated(t *testing.T) {
	a, b := newSides(t)
	_, msg := initiate(t, a)
	checker, jar := NewCookieChecker(b.Public()), NewCookieJar(a.remote)
	src := testSource(1000)
	giveCookie(t, checker, jar, msg[:])
	if err := jar.AddMACs(msg[:], 0); err != nil {
		t.Fatal(err)
	}
	if ok1, ok2 := checker.Check(msg[:], src, 0); !ok1 || !ok2 {
		t.Fatalf("unchanged message: got mac1 %v, mac2 %v, want both valid", ok1, ok2)
	}
	for at := range msg {
		for _, bad := range flips(msg[:], at) {
			if _, ok2 := checker.Check(bad, src, 0); ok2 {
				t.Errorf("byte %d changed: both MACs are valid, want at least one invalid", at)
			}
			if ok1, _ := checker.Check(bad, src, 0); ok1 && at < 132 {
				t.Errorf("byte %d changed: mac1 is valid, want it invalid", at)
			}
			r := NewResponder(b.Identity)
			public, reason := r.ConsumeInitiation(bad)
			if reason == drop.None && public == b.remote.public {
				_, reason = r.Authenticate(b.remote)
			}
			covered := at < 4 || at >= 8 && at < 116 // the handshake leaves the index to mac1, and the MACs alone
			if covered == (reason == drop.None) {
				t.Errorf("byte %d changed: got drop reason %v, want rejected %v", at, reason, covered)
			}
		}
	}
	accept(t, b, msg[:])
}

func TestForgedResponseDoesNotEndHandshake(t *testing.T) {
	a, b := newSides(t)
	i, initiation := initiate(t, a)
	theirs, response := respond(t, accept(t, b, initiation[:]), PresharedKey{})
	checker, jar := NewCookieChecker(a.Public()), NewCookieJar(b.remote)
	if err := jar.AddMACs(response[:], 0); err != nil {
		t.Fatal(err)
	}
	for at := range response {
		for _, bad := range flips(response[:], at) {
			if ok1, _ := checker.Check(bad, testSource(1), 0); ok1 && at < 76 {
				t.Errorf("byte %d changed: mac1 is valid, want it invalid", at)
			}
			if at >= 4 && at < 8 || at >= 60 { // the handshake leaves the index to mac1, and the MACs alone
				continue
			}
			before := *i
			if _, reason := i.ConsumeResponse(bad, &PresharedKey{}); reason == drop.None {
				t.Fatalf("byte %d changed: got no drop reason, want one", at)
			}
			if *i != before {
				t.Fatalf("byte %d changed: the rejected response changed the initiator's state", at)
			}
		}
	}
	for _, other := range [][]byte{nil, response[:91], initiation[:]} {
		if _, reason := i.ConsumeResponse(other, &PresharedKey{}); reason == drop.None {
			t.Errorf("a message of %d bytes that is not a response was accepted", len(other))
		}
	}
	ours, reason := i.ConsumeResponse(response[:], &PresharedKey{})
	if reason != drop.None || ours.Send != theirs.Recv {
		t.Errorf("genuine response after forged ones: got drop reason %v, want none and matching keys", reason)
	}
}

func TestResponderRequiresStepsInOrder(t *testing.T) {
	a, b := newSides(t)
	_, initiation := initiate(t, a)
	r, response := NewResponder(b.Identity), new(wire.Response)
	create := func() error {
		_, err := r.CreateResponse(response, 0xb2, &PresharedKey{}, source(4))
		return err
	}
	if _, reason := r.Authenticate(b.remote); reason != drop.HSInvalid {
		t.Errorf("Authenticate before an initiation: got drop reason %v, want %v", reason, drop.HSInvalid)
	}
	if err := create(); !errors.Is(err, ErrNotAuthenticated) {
		t.Errorf("CreateResponse before an initiation: got error %v, want %v", err, ErrNotAuthenticated)
	}
	if _, reason := r.ConsumeInitiation(initiation[:]); reason != drop.None {
		t.Fatalf("consuming the initiation: got drop reason %v", reason)
	}
	if err := create(); !errors.Is(err, ErrNotAuthenticated) {
		t.Errorf("CreateResponse before Authenticate: got error %v, want %v", err, ErrNotAuthenticated)
	}
	if _, reason := r.Authenticate(b.remote); reason != drop.HSInvalid {
		t.Errorf("Authenticate after a failed CreateResponse: got drop reason %v, want %v", reason, drop.HSInvalid)
	}
	r = accept(t, b, initiation[:])
	if err := create(); err != nil {
		t.Error(err)
	}
	if err := create(); !errors.Is(err, ErrNotAuthenticated) {
		t.Errorf("second CreateResponse: got error %v, want %v", err, ErrNotAuthenticated)
	}
	if *response == (wire.Response{}) {
		t.Error("the failed CreateResponse erased the earlier response")
	}
	r = accept(t, b, initiation[:])
	if _, reason := r.ConsumeInitiation(nil); reason != drop.RXTooShort {
		t.Errorf("empty initiation: got drop reason %v, want %v", reason, drop.RXTooShort)
	}
	if err := create(); !errors.Is(err, ErrNotAuthenticated) {
		t.Errorf("CreateResponse after a rejected initiation: got error %v, want %v", err, ErrNotAuthenticated)
	}
}

func TestAuthenticateRefusesOtherPeers(t *testing.T) {
	a, b := newSides(t)
	_, initiation := initiate(t, a)
	other := newIdentity(t, 5)
	for name, remote := range map[string]*Remote{
		"no peer":                    nil,
		"another peer":               newRemote(t, b.Identity, other.Public()),
		"the peer of another device": newRemote(t, other, a.Public()),
	} {
		r := NewResponder(b.Identity)
		if _, reason := r.ConsumeInitiation(initiation[:]); reason != drop.None {
			t.Fatalf("consuming the initiation: got drop reason %v", reason)
		}
		if _, reason := r.Authenticate(remote); reason != drop.HSInvalid || r.stage != idle {
			t.Errorf("%s: got drop reason %v, want %v and an idle responder", name, reason, drop.HSInvalid)
		}
	}
}

func TestInitiationForAnotherKeyIsRefused(t *testing.T) {
	a, _ := newSides(t)
	_, initiation := initiate(t, a)
	if _, reason := NewResponder(newIdentity(t, 5)).ConsumeInitiation(initiation[:]); reason != drop.HSInvalid {
		t.Errorf("initiation for another responder: got drop reason %v, want %v", reason, drop.HSInvalid)
	}
}

func TestClaimedForeignKeyIsNotAuthenticated(t *testing.T) {
	a, b := newSides(t)
	mallory := newIdentity(t, 6)
	forged := newRemote(t, mallory, b.Public())
	forged.local = &Identity{private: mallory.private, public: a.Public()} // knows a's public key, not its private one
	_, initiation := initiate(t, side{mallory, forged})
	r := NewResponder(b.Identity)
	if public, reason := r.ConsumeInitiation(initiation[:]); reason != drop.None || public != a.Public() {
		t.Fatalf("consuming the initiation: got drop reason %v, public key %v, want none, %v", reason, public, a.Public())
	}
	if _, reason := r.Authenticate(b.remote); reason != drop.HSInvalid {
		t.Errorf("authenticating the initiation: got drop reason %v, want %v", reason, drop.HSInvalid)
	}
}

// lowOrder are the points of order 1, 2, 4 and 8 on Curve25519 and its twist, and their other encodings.
func lowOrder(t testing.TB) (points []PublicKey) {
	t.Helper()
	const nines = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
	for _, s := range []string{
		fmt.Sprintf("%064x", 0), "01" + fmt.Sprintf("%062x", 0),
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
		"ecff" + nines + "7f", "edff" + nines + "7f", "eeff" + nines + "7f",
	} {
		point := PublicKey(unhex(t, s))
		points = append(points, point)
		point[31] |= 0x80 // a bit that Curve25519 ignores
		points = append(points, point)
	}
	return points
}

func TestPeersOfLowOrderAreRefused(t *testing.T) {
	for _, point := range lowOrder(t) {
		if remote, err := NewRemote(newIdentity(t, 1), point); !errors.Is(err, ErrLowOrder) || remote != nil {
			t.Errorf("%s: got error %v, want %v", point.Hex(), err, ErrLowOrder)
		}
	}
}

// TestInitiationsWithEphemeralOfLowOrderAreRefused makes such initiations as an attacker would: the first DH is zero
// whatever our private key, so anyone can encrypt a claimed static key.
func TestInitiationsWithEphemeralOfLowOrderAreRefused(t *testing.T) {
	a, b := newSides(t)
	for _, point := range lowOrder(t) {
		msg := new(wire.Initiation)
		msg.SetHeader(1)
		*msg.Ephemeral() = point
		state := newSymmetric(&b.public)
		state.mixEphemeral(msg.Ephemeral())
		key := state.mixKeyForCipher(make([]byte, KeySize))
		state.seal(msg.Static(), &key, a.public[:])
		if _, reason := NewResponder(b.Identity).ConsumeInitiation(msg[:]); reason != drop.HSInvalid {
			t.Errorf("%s: got drop reason %v, want %v", point.Hex(), reason, drop.HSInvalid)
		}
	}
}

func TestResponsesWithEphemeralOfLowOrderAreRefused(t *testing.T) {
	a, _ := newSides(t)
	i, _ := initiate(t, a)
	for _, point := range lowOrder(t) {
		msg := new(wire.Response)
		msg.SetHeader(2, 0xa1)
		*msg.Ephemeral() = point
		state := i.state
		state.mixEphemeral(msg.Ephemeral())
		state.mixKey(make([]byte, KeySize))
		state.mixKey(make([]byte, KeySize))
		key := state.mixPSK(&PresharedKey{})
		state.seal(msg.Empty(), &key, nil)
		if _, reason := i.ConsumeResponse(msg[:], &PresharedKey{}); reason != drop.HSInvalid {
			t.Errorf("%s: got drop reason %v, want %v", point.Hex(), reason, drop.HSInvalid)
		}
	}
}

func TestIdentityNeedsAKey(t *testing.T) {
	if id, err := NewIdentity(PrivateKey{}); !errors.Is(err, ErrNoPrivateKey) || id != nil {
		t.Error(err)
	}
	key, _ := NewPrivateKey(source(1))
	if got := newIdentity(t, 1).Public(); got != key.Public() {
		t.Errorf("got public key %v, want %v", got, key.Public())
	}
}

func TestFailingRandomnessEndsTheHandshake(t *testing.T) {
	a, b := newSides(t)
	broken := iotest.ErrReader(io.ErrClosedPipe)
	i, initiation := initiate(t, a)
	r := accept(t, b, initiation[:])
	if err := i.CreateInitiation(initiation, 1, testTime, broken); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("CreateInitiation with a broken random source: got error %v, want %v", err, io.ErrClosedPipe)
	}
	if i.ephemeral != nil {
		t.Error("an ephemeral key is kept after a failed CreateInitiation")
	}
	if _, err := r.CreateResponse(new(wire.Response), 1, &PresharedKey{}, broken); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("CreateResponse with a broken random source: got error %v, want %v", err, io.ErrClosedPipe)
	}
	if r.stage != idle {
		t.Error("the responder is not idle after a failed CreateResponse")
	}
}

func TestWipeLeavesNothing(t *testing.T) {
	a, b := newSides(t)
	i, initiation := initiate(t, a)
	r := accept(t, b, initiation[:])
	keys, _ := respond(t, accept(t, b, initiation[:]), PresharedKey{})
	i.Wipe()
	r.Wipe()
	keys.Wipe()
	if *i != (Initiator{remote: a.remote}) || *r != (Responder{local: b.Identity}) || keys != (Keys{}) {
		t.Error("Wipe left secrets")
	}
}

// BenchmarkHandshake is a whole handshake, both sides, MACs included.
func BenchmarkHandshake(b *testing.B) {
	us, them := newSides(b)
	i, r := NewInitiator(us.remote), NewResponder(them.Identity)
	jars := []*CookieJar{NewCookieJar(us.remote), NewCookieJar(them.remote)}
	checkers := []*CookieChecker{NewCookieChecker(us.public), NewCookieChecker(them.public)}
	initiation, response := new(wire.Initiation), new(wire.Response)
	var psk PresharedKey
	random, src := source(1), testSource(1)
	b.ReportAllocs()
	for b.Loop() {
		err := i.CreateInitiation(initiation, 1, testTime, random)
		_ = jars[0].AddMACs(initiation[:], 0)
		ok1, _ := checkers[1].Check(initiation[:], src, 0)
		_, reason1 := r.ConsumeInitiation(initiation[:])
		_, reason2 := r.Authenticate(them.remote)
		_, err2 := r.CreateResponse(response, 2, &psk, random)
		_ = jars[1].AddMACs(response[:], 0)
		ok2, _ := checkers[0].Check(response[:], src, 0)
		_, reason3 := i.ConsumeResponse(response[:], &psk)
		if err != nil || err2 != nil || !ok1 || !ok2 || reason1|reason2|reason3 != drop.None {
			b.Fatal(err, err2, ok1, ok2, reason1, reason2, reason3)
		}
	}
}
