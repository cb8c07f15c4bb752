// SPDX-License-Identifier: Apache-2.0

package noise

import (
	stdhmac "crypto/hmac"
	"encoding/hex"
	"hash"
	"io"
	"testing"

	"golang.org/x/crypto/blake2s"
)

// counting returns 32 bytes that count up from first.
func counting(first byte) (b [blake2s.Size]byte) {
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// The expected values of this file were computed with Python's hashlib and hmac.

func TestHMACBlake2sKnownAnswers(t *testing.T) {
	key, msg := counting(0), counting(32)
	for _, tc := range []struct {
		msg  []byte
		want string
	}{
		{msg[:], "db2309055c2dd6fc95adae6006df9ceee6fdc4906548445a73c8ae80a607c535"},
		{nil, "e2641d24dfa8dd89e8cb77f1cdc77d8c006e5bebdfc4d6a3a3a6f8d5b7586fb0"},
		{make([]byte, 80), "4f02f35c4476638629731f87252236f64e2a803162685ec9fc23e9dc95d8246b"}, // more than its buffer
	} {
		got := HMAC(&key, tc.msg)
		if hex.EncodeToString(got[:]) != tc.want {
			t.Errorf("%x: got %x, want %s", tc.msg, got, tc.want)
		}
	}
}

func TestHMACAgreesWithTheStandardLibrary(t *testing.T) {
	random := source(1)
	for size := range 130 {
		var key [blake2s.Size]byte
		msg := make([]byte, size)
		_, _ = io.ReadFull(random, key[:])
		_, _ = io.ReadFull(random, msg)
		oracle := stdhmac.New(func() hash.Hash { h, _ := blake2s.New256(nil); return h }, key[:])
		oracle.Write(msg)
		if got := HMAC(&key, msg); !equal(got[:], oracle.Sum(nil)) {
			t.Fatalf("%d bytes: got %x, want %x", size, got, oracle.Sum(nil))
		}
	}
}

func TestKDFKnownAnswers(t *testing.T) {
	input := counting(32)
	for name, tc := range map[string]struct {
		input []byte
		want  []string
	}{
		"three of a key": {input[:], []string{
			"6a96444e20e8d4c1cee974416acae1c10b3c92886010e54ed94dafb2c3b80ea0",
			"57af120b0de7acbe7907ec149c5ae870a2dbb74232b65777ba4123f1f7f888f5",
			"0926c7caabb6e8d73beda759e6f4f0d324ce5b5000bcf8cd784b26db3049faa9",
		}},
		"two of nothing": {nil, []string{
			"7a38c34bf2b8738d7374ca77c44ecb309a11d2b2528304fa86052c365e722624",
			"1a17621f346abdc520746a9fb64d8eb03231d674fc15687537b0780fd9c060fd",
		}},
	} {
		for n := 1; n <= len(tc.want); n++ {
			chain := counting(0)
			out := []*[blake2s.Size]byte{&chain, {}, {}}[:n] // the first output replaces the chain
			KDF(&chain, tc.input, out...)
			for i, o := range out {
				if hex.EncodeToString(o[:]) != tc.want[i] {
					t.Errorf("%s: output %d of %d: got %x, want %s", name, i+1, n, *o, tc.want[i])
				}
			}
		}
	}
}

func TestHandshakeStartsFromTheProtocolsConstants(t *testing.T) {
	chain := blake2s.Sum256([]byte(construction))
	if got := hex.EncodeToString(chain[:]); got != "60e26daef327efc02ec335e2a025d2d016eb4206f87277f52d38d1988b78cd36" {
		t.Errorf("got initial chaining key %s, want the known value", got)
	}
	state := symmetric{hash: chain}
	state.mixHash([]byte(identifier))
	if got := hex.EncodeToString(state.hash[:]); got != "2211b361081ac566691243db458ad5322d9c6c662293e8b70ee19c65ba079ef3" {
		t.Errorf("got initial hash %s, want the known value", got)
	}
}

func TestMACKnownAnswers(t *testing.T) {
	key := counting(0)
	want := "a39faa4a9ec339b8953422c2d1b846b4"
	for _, parts := range [][][]byte{{[]byte("abcdef")}, {[]byte("abc"), nil, []byte("def")}} {
		if got := mac(key[:], parts...); hex.EncodeToString(got[:]) != want {
			t.Errorf("got %x, want %s", got, want)
		}
	}
	keys := newMACKeys(PublicKey(key))
	if got := hex.EncodeToString(keys.mac1[:]); got != "4fb2527ac956001553dc1ad9b55171b7d9daa3de1cdbcd71451830170c7e6cac" {
		t.Errorf("got mac1 key %s, want the known value", got)
	}
	if got := hex.EncodeToString(keys.cookie[:]); got != "3dd5869c5202e45146936d1644f76ff697061661c181f3fd450eae43932eacec" {
		t.Errorf("got cookie key %s, want the known value", got)
	}
}

func TestKDFDoesNotAllocate(t *testing.T) {
	chain, input := counting(0), counting(32)
	if allocs := testing.AllocsPerRun(100, func() { KDF(&chain, input[:], &chain, &input) }); allocs != 0 {
		t.Errorf("got %v allocations, want 0", allocs)
	}
}
