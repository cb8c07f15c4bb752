// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// tampered seals the set, corrupts about half of its messages, and checks what Open makes of each.
func tampered(t testing.TB, r *rand.Rand, s *set, k *Key, scratch *Scratch) {
	t.Helper()
	k.Seal(scratch, s.msgs)
	corrupted := make([]bool, len(s.msgs))
	for i := range s.msgs {
		if corrupted[i] = r.IntN(2) == 0; corrupted[i] {
			corrupt(r, &s.msgs[i])
		}
	}
	received := bytes.Clone(s.buf)
	k.Open(scratch, s.msgs)
	for i, m := range s.msgs {
		at, n := s.at[i], len(m.Text)-TagLen
		switch text := m.Text[:n]; {
		case m.Valid == corrupted[i]:
			t.Fatalf("message %d of %d, %d bytes, corrupted %v: got valid %v", i, len(s.msgs), n, corrupted[i], m.Valid)
		case m.Valid && !bytes.Equal(text, s.plain[at:at+n]):
			t.Fatalf("message %d of %d, %d bytes: the plaintext differs from the sealed one", i, len(s.msgs), n)
		case !m.Valid && !bytes.Equal(text, received[at:at+n]) && len(bytes.Trim(text, "\x00")) > 0:
			t.Fatalf("message %d of %d, %d bytes: text of an invalid message is neither ciphertext nor zeros", i, len(s.msgs), n)
		}
	}
}

// corrupt flips one bit of the text, the tag or the counter.
func corrupt(r *rand.Rand, m *Message) {
	bit := r.IntN(8*len(m.Text) + 64)
	if bit < 64 {
		m.Counter ^= 1 << bit
		return
	}
	m.Text[bit/8-8] ^= 1 << (bit % 8)
}

func TestOpenRejectsOnlyTamperedMessages(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(5, 5))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for n := range 100 {
			lengths := make([]int, n)
			for i := range lengths {
				lengths[i] = edges[r.IntN(len(edges))]
			}
			tampered(t, r, newSet(t, r, o, lengths, func() int { return 3 }), k, scratch)
		}
	})
}

func TestOpenRejectsEveryFlippedTagBit(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(6, 6))
		k, scratch := mustKey(t, impl, randomKey(r)), new(Scratch)
		msgs := make([]Message, 8*TagLen+1)
		for i := range msgs {
			msgs[i] = Message{Counter: uint64(i), Text: randomBytes(r, 40+TagLen)}
		}
		k.Seal(scratch, msgs)
		for i := range 8 * TagLen {
			msgs[i].Text[40+i/8] ^= 1 << (i % 8)
		}
		k.Open(scratch, msgs)
		for i, m := range msgs {
			if m.Valid != (i == 8*TagLen) {
				t.Errorf("bit %d flipped: got valid %v, want %v", i, m.Valid, i == 8*TagLen)
			}
		}
	})
}

func TestOpenRejectsMessageOfAnotherKey(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(7, 7))
		a, b, scratch := mustKey(t, impl, randomKey(r)), mustKey(t, impl, randomKey(r)), new(Scratch)
		msgs := []Message{{Text: randomBytes(r, 100)}, {Text: randomBytes(r, TagLen)}}
		a.Seal(scratch, msgs)
		b.Open(scratch, msgs)
		if msgs[0].Valid || msgs[1].Valid {
			t.Error("got valid messages, want none")
		}
	})
}

func TestTextShorterThanTagIsInvalid(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(8, 8))
		k, scratch := mustKey(t, impl, randomKey(r)), new(Scratch)
		msgs := []Message{{Text: randomBytes(r, 116)}, {Valid: true}}
		for n := range TagLen {
			msgs = append(msgs, Message{Text: randomBytes(r, n), Valid: true})
		}
		before := fmt.Sprint(msgs[1:])
		k.Seal(scratch, msgs)
		if fmt.Sprint(msgs[1:]) != before {
			t.Error("Seal changed a message without room for a tag")
		}
		k.Open(scratch, msgs)
		if !msgs[0].Valid || slices.ContainsFunc(msgs[1:], func(m Message) bool { return m.Valid }) {
			t.Error("want only the first message valid, since the others are too short")
		}
		k.Seal(scratch, nil)
		k.Open(scratch, nil)
	})
}
