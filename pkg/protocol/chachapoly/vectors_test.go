// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// nonceKey is a key for vectors whose nonce does not begin with zeros.
func nonceKey(t testing.TB, impl *implementation, key, nonce []byte) (k *Key, counter uint64) {
	t.Helper()
	k, err := newKey(only(impl), (*[KeyLen]byte)(key), binary.LittleEndian.Uint32(nonce))
	if err != nil {
		t.Fatal(err)
	}
	return k, binary.LittleEndian.Uint64(nonce[4:])
}

func TestWycheproof(t *testing.T) {
	raw, err := os.ReadFile("testdata/wycheproof.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			TcID                                   int `json:"tcId"`
			Comment, Key, IV, Msg, CT, Tag, Result string
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil || len(file.Tests) < 30 {
		t.Fatalf("got %d test vectors, want 30 or more, error %v", len(file.Tests), err)
	}
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		scratch := new(Scratch)
		for _, v := range file.Tests {
			k, counter := nonceKey(t, impl, unhex(t, v.Key), unhex(t, v.IV))
			text := append(unhex(t, v.Msg), make([]byte, TagLen)...)
			msgs := []Message{{Counter: counter, Text: text}}
			k.Seal(scratch, msgs)
			if got := hex.EncodeToString(text); v.Result == "valid" && got != v.CT+v.Tag {
				t.Errorf("vector %d (%s): got %s, want %s", v.TcID, v.Comment, got, v.CT+v.Tag)
			}
			copy(text, unhex(t, v.CT+v.Tag))
			k.Open(scratch, msgs)
			if msgs[0].Valid != (v.Result == "valid") {
				t.Errorf("vector %d (%s): got valid %v, want result %q", v.TcID, v.Comment, msgs[0].Valid, v.Result)
			}
		}
	})
}

const sunscreen = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."

var rfc8439 = []struct{ name, key, nonce, plain, cipher string }{
	{
		"A.1 #2", strings.Repeat("00", 32), strings.Repeat("00", 12), strings.Repeat("\x00", 64),
		"9f07e7be5551387a98ba977c732d080d cb0f29a048e3656912c6533e32ee7aed 29b721769ce64e43d57133b074d839d5 31ed1f28510afb45ace10a1f4b794d6f",
	},
	{
		"2.4.2", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", "000000000000004a00000000", sunscreen,
		"6e2e359a2568f98041ba0728dd0d6981 e97e7aec1d4360c20a27afccfd9fae0b f91b65c5524733ab8f593dabcd62b357 1639d624e65152ab8f530c359f0861d8" +
			"07ca0dbf500d6a6156a38e088a22b65e 52bc514d16ccf806818ce91ab7793736 5af90bbf74a35be6b40b8eedf2785e42 874d",
	},
	{
		"2.8.2", "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "070000004041424344454647", sunscreen,
		"d31a8d34648e60db7b86afbc53ef7ec2 a4aded51296e08fea9e2b5a736ee62d6 3dbea45e8ca9671282fafb69da92728b 1a71de0a9e060b2905d6a5b67ecd3b36" +
			"92ddbd7f2d778b8c9803aee328091b58 fab324e4fad675945585808b4831d7bc 3ff4def08e4b7a9de576d26586cec64b 6116",
	},
}

func TestEncryptionMatchesRFC8439(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		scratch := new(Scratch)
		for _, v := range rfc8439 {
			k, counter := nonceKey(t, impl, unhex(t, v.key), unhex(t, v.nonce))
			text := append([]byte(v.plain), make([]byte, TagLen)...)
			k.Seal(scratch, []Message{{Counter: counter, Text: text}})
			if got := text[:len(v.plain)]; !bytes.Equal(got, unhex(t, v.cipher)) {
				t.Errorf("%s: got %x, want %s", v.name, got, v.cipher)
			}
		}
	})
}
