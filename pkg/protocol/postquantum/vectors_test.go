// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"bytes"
	"crypto/mlkem"
	"crypto/mlkem/mlkemtest"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// octets are bytes in hex.
type octets []byte

func (o *octets) UnmarshalText(text []byte) (err error) {
	*o, err = hex.DecodeString(string(text))
	return err
}

func (o octets) key() (k [noise.KeySize]byte) { return [noise.KeySize]byte(o) }

// vector is an entry of vectors.json. All but ID are bytes.
type vector struct {
	PSK                octets `json:"psk"`
	Initiator          octets `json:"initiator"`
	Responder          octets `json:"responder"`
	InitiatorEphemeral octets `json:"initiator_ephemeral"`
	ResponderEphemeral octets `json:"responder_ephemeral"`
	Timestamp          octets `json:"timestamp"`
	Seed               octets `json:"seed"`
	Random             octets `json:"random"`
	Send               octets `json:"send"`
	Receive            octets `json:"receive"`
	Exporter           octets `json:"exporter"`
	Hash               octets `json:"hash"`
	EK                 octets `json:"ek"`
	CT                 octets `json:"ct"`
	Shared             octets `json:"shared"`
	Transcript         octets `json:"transcript"`
	Key                octets `json:"key"`
	ID                 uint16 `json:"id"`
	Tag                octets `json:"tag"`
	Effective          octets `json:"effective"`
	Rejected           octets `json:"rejected"`
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func vectors(t *testing.T) (list []vector) {
	t.Helper()
	readJSON(t, "vectors.json", &list)
	return list
}

func want(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got %x, want %x", what, got, want)
	}
}

// TestVectorsAreThoseOfTheProgram runs the program that made them.
func TestVectorsAreThoseOfTheProgram(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here: the vectors are not made anew")
	}
	got, err := exec.CommandContext(t.Context(), python, "testdata/vectors.py").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, file) {
		t.Error("vectors.json is not what vectors.py prints")
	}
}

// side is one end of a handshake.
type side struct {
	identity *noise.Identity
	remote   *noise.Remote
}

func sides(t *testing.T, v *vector) (i, r side) {
	t.Helper()
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	i.identity, err = noise.NewIdentity(noise.PrivateKey(v.Initiator))
	check()
	r.identity, err = noise.NewIdentity(noise.PrivateKey(v.Responder))
	check()
	i.remote, err = noise.NewRemote(i.identity, r.identity.Public())
	check()
	r.remote, err = noise.NewRemote(r.identity, i.identity.Public())
	check()
	return i, r
}

// handshakeOf makes the keys of both ends. The initiator tries psks.
func handshakeOf(t *testing.T, v *vector, psk noise.PresharedKey, psks ...*noise.PresharedKey) (ours, theirs noise.Keys) {
	t.Helper()
	i, r := sides(t, v)
	var initiation wire.Initiation
	initiator := noise.NewInitiator(i.remote)
	if err := initiator.CreateInitiation(&initiation, 1, noise.Timestamp(v.Timestamp), bytes.NewReader(v.InitiatorEphemeral)); err != nil {
		t.Fatal(err)
	}
	responder := noise.NewResponder(r.identity)
	if _, reason := responder.ConsumeInitiation(initiation[:]); reason != drop.None {
		t.Fatal(reason)
	}
	if timestamp, reason := responder.Authenticate(r.remote); reason != drop.None || timestamp != noise.Timestamp(v.Timestamp) {
		t.Fatal(reason, timestamp)
	}
	var response wire.Response
	theirs, err := responder.CreateResponse(&response, 2, &psk, bytes.NewReader(v.ResponderEphemeral))
	if err != nil {
		t.Fatal(err)
	}
	ours, reason := initiator.ConsumeResponse(response[:], psks...)
	if reason != drop.None {
		t.Fatal(reason)
	}
	return ours, theirs
}

func TestHandshakeExportsAsTheVectorsDo(t *testing.T) {
	for _, v := range vectors(t) {
		psk, other := noise.PresharedKey(v.PSK), noise.PresharedKey{1, 2}
		ours, theirs := handshakeOf(t, &v, psk, &other, &psk)
		if ours.Preshared != 1 {
			t.Errorf("got key %d of those tried, want 1", ours.Preshared)
		}
		for end, k := range map[string]noise.Keys{"initiator": ours, "responder": theirs} {
			send, receive := k.Send, k.Recv
			if !k.Initiator {
				send, receive = receive, send
			}
			want(t, end+"'s sending key", send[:], v.Send)
			want(t, end+"'s receiving key", receive[:], v.Receive)
			want(t, end+"'s exporter", k.Exporter[:], v.Exporter)
			want(t, end+"'s hash", k.Hash[:], v.Hash)
		}
	}
}

func TestKeyScheduleKnownAnswers(t *testing.T) {
	for _, v := range vectors(t) {
		i, r := sides(t, &v)
		offerer, answerer, hash, exporter := i.identity.Public(), r.identity.Public(), v.Hash.key(), noise.SessionKey(v.Exporter)
		sum := transcript(&offerer, &answerer, &hash, v.EK, v.CT)
		want(t, "transcript", sum[:], v.Transcript)
		got := derive(&exporter, v.Shared, &sum)
		want(t, "key", got.key[:], v.Key)
		want(t, "tag", got.tag[:], v.Tag)
		if got.id != v.ID {
			t.Errorf("got id %#x, want %#x", got.id, v.ID)
		}
		psk := noise.PresharedKey(v.PSK)
		e := effective(&psk, &got.key)
		want(t, "effective preshared key", e[:], v.Effective)
	}
}

func TestExchangeKnownAnswers(t *testing.T) {
	for _, v := range vectors(t) {
		var s keyPair
		ek, err := newKeyPair(&s, bytes.NewReader(v.Seed))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "encapsulation key", ek, v.EK)
		i, r := sides(t, &v)
		offerer, answerer := i.identity.Public(), r.identity.Public()
		session := Session{exporter: noise.SessionKey(v.Exporter), hash: v.Hash.key(), initiator: true}
		got, ok := session.finish(&offerer, &answerer, &s, ek, append(bytes.Clone(v.CT), v.Tag...))
		if want(t, "key", got.key[:], v.Key); !ok || got.id != v.ID {
			t.Errorf("got id %#x and %v, want %#x", got.id, ok, v.ID)
		}
		var shared [mlkem.SharedKeySize]byte
		wrong := bytes.Clone(v.CT)
		wrong[0] ^= 1
		if !s.decapsulate(&shared, wrong) {
			t.Error("a wrong ciphertext is an error, want another secret (FIPS 203, section 6.3)")
		}
		want(t, "secret of a wrong ciphertext", shared[:], v.Rejected)
	}
}

// official are vectors of the standard's authors.
type official struct {
	Keys           []struct{ D, Z, EK octets }
	Encapsulations []struct{ EK, M, C, K octets }
}

func TestOfficialKEMVectors(t *testing.T) {
	var o official
	readJSON(t, "fips203.json", &o)
	for _, k := range o.Keys {
		var s keyPair
		ek, err := newKeyPair(&s, bytes.NewReader(append(bytes.Clone(k.D), k.Z...)))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "encapsulation key", ek, k.EK)
		var shared, back [mlkem.SharedKeySize]byte
		ct, ok := encapsulate(&shared, ek)
		if !ok || !s.decapsulate(&back, ct) || shared != back {
			t.Error("the secret of a ciphertext is not the one that it was made with")
		}
	}
	for _, e := range o.Encapsulations {
		ek, err := mlkem.NewEncapsulationKey768(e.EK)
		if err != nil {
			t.Fatal(err)
		}
		k, c, err := mlkemtest.Encapsulate768(ek, e.M)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "ciphertext", c, e.C)
		want(t, "secret", k, e.K)
	}
	if len(o.Keys)*len(o.Encapsulations) == 0 {
		t.Error("no vectors")
	}
}

// TestInvalidKeyIsRefused: a coefficient of q is none (FIPS 203, section 7.2).
func TestInvalidKeyIsRefused(t *testing.T) {
	ek := bytes.Clone(vectors(t)[0].EK)
	ek[0], ek[1] = 3329&0xff, ek[1]&0xf0|3329>>8
	var shared [mlkem.SharedKeySize]byte
	for name, bad := range map[string][]byte{"a coefficient of q": ek, "short": ek[:1183], "none": nil} {
		if ct, ok := encapsulate(&shared, bad); ok || ct != nil {
			t.Errorf("%s: the key is accepted", name)
		}
	}
}

func TestZeroSecretIsRefused(t *testing.T) {
	var shared [mlkem.SharedKeySize]byte
	if take(&shared, make([]byte, mlkem.SharedKeySize)) {
		t.Error("a secret of zeros is accepted")
	}
	secret := []byte{31: 1}
	if !take(&shared, secret) || shared[31] != 1 || secret[31] != 0 {
		t.Error("the secret was not moved")
	}
}
