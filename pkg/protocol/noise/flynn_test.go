// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"bytes"
	"encoding/binary"
	"testing"

	flynn "github.com/flynn/noise"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// oracle returns flynn/noise's side of a handshake. Its ephemeral key comes from source(seed).
func oracle(t *testing.T, private PrivateKey, peer *PublicKey, psk PresharedKey, seed byte) *flynn.HandshakeState {
	t.Helper()
	public := private.Public()
	config := flynn.Config{
		CipherSuite:           flynn.NewCipherSuite(flynn.DH25519, flynn.CipherChaChaPoly, flynn.HashBLAKE2s),
		Random:                source(seed),
		Pattern:               flynn.HandshakeIK,
		Initiator:             peer != nil,
		Prologue:              []byte("WireGuard v1 zx2c4 Jason@zx2c4.com"),
		PresharedKey:          psk[:],
		PresharedKeyPlacement: 2,
		StaticKeypair:         flynn.DHKey{Private: private[:], Public: public[:]},
	}
	if peer != nil {
		config.PeerStatic = peer[:]
	}
	state, err := flynn.NewHandshakeState(config)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// pair is the static key pairs and the preshared key of one case.
type pair struct {
	a, b PrivateKey
	psk  PresharedKey
}

func pairs() []pair {
	cases := []pair{}
	for seed := range byte(8) {
		a, _ := NewPrivateKey(source(10 + seed))
		b, _ := NewPrivateKey(source(30 + seed))
		var psk PresharedKey
		if seed%2 == 1 {
			psk, _ = NewPresharedKey(source(50 + seed))
		}
		cases = append(cases, pair{a, b, psk})
	}
	return cases
}

// sides returns our implementation's two sides of a pair.
func (p pair) sides(t *testing.T) (initiator, responder side) {
	t.Helper()
	a, err := NewIdentity(p.a)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewIdentity(p.b)
	if err != nil {
		t.Fatal(err)
	}
	return side{a, newRemote(t, a, b.Public())}, side{b, newRemote(t, b, a.Public())}
}

// header returns a message's header, written without package wire.
func header(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func TestInitiatorAgreesWithAnIndependentResponder(t *testing.T) {
	for _, p := range pairs() {
		a, _ := p.sides(t)
		them := oracle(t, p.b, nil, p.psk, 4)

		i, initiation := initiate(t, a)
		payload, _, _, err := them.ReadMessage(nil, initiation[8:116])
		if err != nil || !bytes.Equal(payload, testTime[:]) || !bytes.Equal(them.PeerStatic(), a.public[:]) {
			t.Fatalf("flynn/noise reading the initiation: got error %v, payload %x, want payload %x", err, payload, testTime[:])
		}
		body, toResponder, toInitiator, err := them.WriteMessage(header(2, 0xb2, 0xa1), nil)
		if err != nil {
			t.Fatal(err)
		}
		keys, reason := i.ConsumeResponse(append(body, make([]byte, 32)...), &p.psk)
		if reason != drop.None {
			t.Fatalf("consuming the response of flynn/noise: got drop reason %v", reason)
		}
		if keys.Send != toResponder.UnsafeKey() || keys.Recv != toInitiator.UnsafeKey() {
			t.Error("the session keys differ from those of flynn/noise")
		}
		if keys.Local != 0xa1 || keys.Remote != 0xb2 {
			t.Errorf("got indices %#x, %#x, want 0xa1, 0xb2", keys.Local, keys.Remote)
		}
	}
}

func TestResponderAgreesWithAnIndependentInitiator(t *testing.T) {
	for _, p := range pairs() {
		_, b := p.sides(t)
		public := p.b.Public()
		them := oracle(t, p.a, &public, p.psk, 3)

		body, _, _, err := them.WriteMessage(header(1, 0xa1), testTime[:])
		if err != nil {
			t.Fatal(err)
		}
		keys, response := respond(t, accept(t, b, append(body, make([]byte, 32)...)), p.psk)
		payload, toResponder, toInitiator, err := them.ReadMessage(nil, response[12:60])
		if err != nil || len(payload) != 0 {
			t.Fatalf("flynn/noise reading the response: got error %v, payload %x, want no payload", err, payload)
		}
		if keys.Recv != toResponder.UnsafeKey() || keys.Send != toInitiator.UnsafeKey() {
			t.Error("the session keys differ from those of flynn/noise")
		}
		if !bytes.Equal(response[:12], header(2, 0xb2, 0xa1)) {
			t.Errorf("got header %x, want %x", response[:12], header(2, 0xb2, 0xa1))
		}
	}
}

// TestMessagesMatchOracleByteForByte feeds both the same randomness.
func TestMessagesMatchOracleByteForByte(t *testing.T) {
	for _, p := range pairs() {
		a, b := p.sides(t)
		public := p.b.Public()
		alice, bob := oracle(t, p.a, &public, p.psk, 3), oracle(t, p.b, nil, p.psk, 4)
		body1, _, _, err1 := alice.WriteMessage(header(1, 0xa1), testTime[:])
		_, _, _, err2 := bob.ReadMessage(nil, body1[8:])
		body2, _, _, err3 := bob.WriteMessage(header(2, 0xb2, 0xa1), nil)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		_, initiation := initiate(t, a)
		_, response := respond(t, accept(t, b, initiation[:]), p.psk)
		if !bytes.Equal(initiation[:], append(body1, make([]byte, 32)...)) {
			t.Errorf("initiation: got\n%x, want that of flynn/noise\n%x", initiation[:], body1)
		}
		if !bytes.Equal(response[:], append(body2, make([]byte, 32)...)) {
			t.Errorf("response: got\n%x, want that of flynn/noise\n%x", response[:], body2)
		}
	}
}
