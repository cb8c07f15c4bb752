// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"encoding/base64"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestKeyDigitsMatchTheStandardLibrary tries every byte at every place of a key, and every value of a digit.
func TestKeyDigitsMatchTheStandardLibrary(t *testing.T) {
	key := [KeySize]byte{1, 2, 250, 251, 31: 255}
	base, hexadecimal := encodeBase64(&key), encodeHex(&key)
	for c := range 256 {
		for i := range base64Len {
			s := base[:i] + string([]byte{byte(c)}) + base[i+1:]
			want, err := base64.StdEncoding.Strict().DecodeString(s)
			valid := err == nil && len(want) == KeySize && !strings.ContainsAny(s, "\r\n")
			if got, err := ParseBase64[PublicKey](s); (err == nil) != valid || valid && string(got[:]) != string(want) {
				t.Fatalf("base64 %q: got %x, error %v, want %x", s, got[:], err, want)
			}
		}
		for i := range hexLen {
			s := hexadecimal[:i] + string([]byte{byte(c)}) + hexadecimal[i+1:]
			want, err := hex.DecodeString(s)
			valid := err == nil
			if got, err := ParseHex[PublicKey](s); (err == nil) != valid || valid && string(got[:]) != string(want) {
				t.Fatalf("hex %q: got %x, error %v, want %x", s, got[:], err, want)
			}
		}
	}
}

func TestKeysAreWrittenAsTheStandardLibraryDoes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var k PublicKey
		for i := range k {
			k[i] = byte(random.Uint32())
		}
		if got, want := k.Base64(), base64.StdEncoding.EncodeToString(k[:]); got != want {
			t.Fatalf("got base64 %s, want %s", got, want)
		}
		if got, want := k.Hex(), hex.EncodeToString(k[:]); got != want {
			t.Fatalf("got hex %s, want %s", got, want)
		}
	}
}
