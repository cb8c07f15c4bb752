// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

// source returns random bytes that are the same for the same seed.
func source(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

// unhex decodes a constant.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPublicKeyOfRFC7748(t *testing.T) {
	for _, tc := range []struct{ private, public string }{ // RFC 7748, §6.1
		{
			"77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
			"8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
		},
		{
			"5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
			"de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
		},
	} {
		private, err := ParseHex[PrivateKey](tc.private)
		if err != nil {
			t.Fatal(err)
		}
		if got := private.Public().Hex(); got != tc.public {
			t.Errorf("got %s, want %s", got, tc.public)
		}
		if private.Clamp().Public() != private.Public() {
			t.Error("clamping changed the public key")
		}
	}
}

func TestNewKeysComeFromTheGivenRandomness(t *testing.T) {
	a, err := NewPrivateKey(source(1))
	if err != nil {
		t.Fatal(err)
	}
	if a[0]&7 != 0 || a[31]>>6 != 1 {
		t.Error("the private key is not clamped")
	}
	if b, _ := NewPrivateKey(source(1)); !a.Equal(b) {
		t.Error("equal random bytes gave different private keys")
	}
	if b, _ := NewPrivateKey(source(2)); a.Equal(b) {
		t.Error("different random bytes gave equal private keys")
	}
	want := make([]byte, KeySize)
	_, _ = io.ReadFull(source(3), want)
	if psk, err := NewPresharedKey(source(3)); err != nil || !bytes.Equal(psk[:], want) {
		t.Errorf("got preshared key %x, error %v, want the random bytes %x", psk[:], err, want)
	}
}

func TestNewKeysReportFailingRandomness(t *testing.T) {
	broken := iotest.ErrReader(io.ErrClosedPipe)
	if k, err := NewPrivateKey(broken); !errors.Is(err, io.ErrClosedPipe) || !k.IsZero() {
		t.Errorf("private key from a broken random source: got error %v, want %v and the zero key", err, io.ErrClosedPipe)
	}
	if k, err := NewPresharedKey(broken); !errors.Is(err, io.ErrClosedPipe) || !k.IsZero() {
		t.Errorf("preshared key from a broken random source: got error %v, want %v and the zero key", err, io.ErrClosedPipe)
	}
	if _, err := NewPrivateKey(bytes.NewReader(make([]byte, 31))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("private key from 31 random bytes: got error %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

func TestClampLeavesTheZeroKeyAlone(t *testing.T) {
	if got := (PrivateKey{}).Clamp(); !got.IsZero() {
		t.Error("Clamp changed the zero key, which means no key")
	}
}

func TestBase64IsAsStrictAsWG(t *testing.T) {
	const good = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	key, err := ParseBase64[PublicKey](good)
	if err != nil || key.Base64() != good || key[31] != 31 {
		t.Fatalf("ParseBase64(%s) = %v, %v", good, key, err)
	}
	for name, s := range map[string]string{
		"empty":               "",
		"no padding":          good[:43],
		"two paddings":        good[:42] + "==",
		"one more":            good + "=",
		"33 bytes":            good[:43] + "A",
		"stray bits":          good[:42] + "9=",
		"stray bits, lower":   good[:42] + "+=",
		"URL alphabet":        "-" + good[1:],
		"space":               " " + good[1:],
		"line break inside":   good[:10] + "\n" + good[11:],
		"line breaks inside":  good[:8] + "\r\n\r\n" + good[12:],
		"line break at end":   good[:43] + "\n",
		"trailing line break": good + "\n",
		"padding inside":      good[:20] + "=" + good[21:],
		"hex":                 strings.Repeat("00", 32),
		"not ASCII":           strings.Repeat("é", 22),
		"NUL":                 good[:43] + "\x00",
	} {
		if key, err := ParseBase64[PrivateKey](s); !errors.Is(err, ErrKeyFormat) || !key.IsZero() {
			t.Errorf("%s: got error %v, want %v and the zero key", name, err, ErrKeyFormat)
		}
	}
}

func TestHexMatchesUAPI(t *testing.T) {
	const good = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	for _, s := range []string{good, strings.ToUpper(good)} {
		if key, err := ParseHex[PresharedKey](s); err != nil || key.Hex() != good {
			t.Errorf("ParseHex(%s) = %s, error %v, want %s", s, key.Hex(), err, good)
		}
	}
	for _, s := range []string{"", good[:63], good + "0", good + "00", "g" + good[1:], " " + good[1:], "0x" + good[2:]} {
		if key, err := ParseHex[PresharedKey](s); !errors.Is(err, ErrKeyFormat) || !key.IsZero() {
			t.Errorf("ParseHex(%q): got error %v, want %v and the zero key", s, err, ErrKeyFormat)
		}
	}
}

func TestParseErrorsDoNotQuoteTheKey(t *testing.T) {
	const secret = "sssssssssssssssssssssssssssssssssssssssssss!"
	for _, s := range []string{secret, secret[:40], secret + secret[:20]} {
		_, err1 := ParseBase64[PrivateKey](s)
		_, err2 := ParseHex[PrivateKey](s)
		for _, err := range []error{err1, err2} {
			if err == nil || strings.Contains(err.Error(), "ss!") || strings.Contains(err.Error(), "sss") {
				t.Errorf("got error %v, want one without the key's text", err)
			}
		}
	}
}

func TestKeysCompare(t *testing.T) {
	a := PrivateKey{31: 1}
	if a.IsZero() || !(PrivateKey{}).IsZero() || a.Equal(PrivateKey{}) || !a.Equal(a) {
		t.Error("IsZero or Equal of a private key is wrong")
	}
	b := PublicKey{31: 1}
	if b.IsZero() || !(PublicKey{}).IsZero() || b.Equal(PublicKey{}) || !b.Equal(b) {
		t.Error("IsZero or Equal of a public key is wrong")
	}
	c := PresharedKey{31: 1}
	if c.IsZero() || !(PresharedKey{}).IsZero() || c.Equal(PresharedKey{}) || !c.Equal(c) {
		t.Error("IsZero or Equal of a preshared key is wrong")
	}
}

func TestPublicKeyTextSurvivesARoundTrip(t *testing.T) {
	want := PublicKey{1, 2, 3}
	text, err := want.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var got PublicKey
	if err := got.UnmarshalText(text); err != nil || got != want {
		t.Errorf("UnmarshalText: got %v, error %v, want %v", got, err, want)
	}
	if err := got.UnmarshalText(text[1:]); !errors.Is(err, ErrKeyFormat) || got != want {
		t.Errorf("UnmarshalText of invalid text: got %v, error %v, want %v unchanged, %v", got, err, want, ErrKeyFormat)
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	f.Add("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	f.Add("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9=")
	f.Fuzz(func(t *testing.T, s string) {
		if key, err := ParseBase64[PublicKey](s); err == nil && key.Base64() != s {
			t.Errorf("ParseBase64(%q) was accepted, but encodes as %q", s, key.Base64())
		}
		if key, err := ParseHex[PublicKey](s); err == nil && key.Hex() != strings.ToLower(s) {
			t.Errorf("ParseHex(%q) was accepted, but encodes as %q", s, key.Hex())
		}
	})
}
