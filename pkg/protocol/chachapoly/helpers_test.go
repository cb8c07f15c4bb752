// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"
)

// eachImplementation runs a test for everything this CPU runs.
func eachImplementation(t *testing.T, test func(t *testing.T, i *implementation)) {
	t.Helper()
	for _, i := range implementations() {
		t.Run(i.name, func(t *testing.T) { test(t, i) })
	}
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n:n]
}

func randomKey(r *rand.Rand) *[KeyLen]byte { return (*[KeyLen]byte)(randomBytes(r, KeyLen)) }

func mustKey(t testing.TB, i *implementation, key *[KeyLen]byte) *Key {
	t.Helper()
	k, err := newKey(only(i), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// oracle is x/crypto with the nonce laid out by this test.
type oracle struct{ cipher.AEAD }

func newOracle(t testing.TB, key *[KeyLen]byte) oracle {
	t.Helper()
	aead, err := chacha20poly1305.New(key[:])
	if err != nil {
		t.Fatal(err)
	}
	return oracle{aead}
}

func (o oracle) seal(counter uint64, plain []byte) []byte {
	return o.Seal(nil, binary.LittleEndian.AppendUint64(make([]byte, 4), counter), plain, nil)
}

// set is messages of given lengths, one behind the other in one buffer with guard bytes between them, and what they
// have to become.
type set struct {
	buf    []byte
	at     []int
	plain  []byte // the buffer as it began
	sealed []byte // and as it is to be after Seal
	msgs   []Message
}

// newSet begins each text where guard says, counted from the end of the text before it.
func newSet(t testing.TB, r *rand.Rand, o oracle, lengths []int, guard func() int) *set {
	t.Helper()
	s := &set{}
	end := 0
	for _, n := range lengths {
		end += guard()
		s.at = append(s.at, end)
		end += n + TagLen
	}
	s.buf = randomBytes(r, end+64)
	s.plain, s.sealed = bytes.Clone(s.buf), bytes.Clone(s.buf)
	for i, n := range lengths {
		counter := r.Uint64() >> r.IntN(64)
		copy(s.sealed[s.at[i]:], o.seal(counter, s.plain[s.at[i]:s.at[i]+n]))
		s.msgs = append(s.msgs, Message{Counter: counter, Text: s.buf[s.at[i] : s.at[i]+n+TagLen]})
	}
	return s
}

// check seals and opens the set and compares the whole buffer, guard bytes included, each time.
func (s *set) check(t testing.TB, k *Key, scratch *Scratch) {
	t.Helper()
	k.Seal(scratch, s.msgs)
	s.same(t, "sealed", s.sealed)
	k.Open(scratch, s.msgs)
	for i, m := range s.msgs {
		if !m.Valid {
			t.Fatalf("message %d of %d, %d bytes: got invalid, want valid", i, len(s.msgs), len(m.Text))
		}
		copy(s.buf[s.at[i]+len(m.Text)-TagLen:], s.plain[s.at[i]+len(m.Text)-TagLen:][:TagLen])
	}
	s.same(t, "opened", s.plain)
}

func (s *set) same(t testing.TB, what string, want []byte) {
	t.Helper()
	if bytes.Equal(s.buf, want) {
		return
	}
	for i := range s.buf {
		if s.buf[i] == want[i] {
			continue
		}
		for j, at := range s.at {
			if n := len(s.msgs[j].Text); i >= at && i < at+n {
				t.Fatalf("%s: message %d of %d, %d bytes: got a wrong byte at offset %d", what, j, len(s.at), n, i-at)
			}
		}
		t.Fatalf("%s: guard byte %d was overwritten", what, i)
	}
}
