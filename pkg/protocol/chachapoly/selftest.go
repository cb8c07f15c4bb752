// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"time"
)

// selfTest reports whether i seals as Generic does and opens the result: a CPU or emulator that reports features it
// does not implement correctly must not lose packets.
func selfTest(i *implementation) bool {
	const n, step = 17, 61 // messages of up to 976 bytes, 8 KiB in all, reach every kernel
	var key [KeyLen]byte
	var want, got [n]Message
	for j := range n {
		key[j] = byte(j + 1)
		want[j] = Message{Counter: uint64(j) << 30, Text: bytes.Repeat([]byte{byte(j)}, step*j+TagLen)}
		got[j] = Message{Counter: want[j].Counter, Text: bytes.Clone(want[j].Text)}
	}
	k, err := newKey(generic, &key, 0)
	if err != nil {
		return true // no key will be made
	}
	s := new(Scratch)
	sealEach(k.secret, s, want[:])
	i.seal(k.secret, s, got[:])
	for j := range n {
		if !bytes.Equal(got[j].Text, want[j].Text) {
			return false
		}
	}
	i.open(k.secret, s, got[:])
	ok := true
	for j := range n {
		ok = ok && got[j].Valid && bytes.Count(got[j].Text[:step*j], []byte{byte(j)}) == step*j
	}
	return ok
}

// timeTrain returns the time that each implementation takes to seal and open a train: the best of some rounds, in turn,
// so that an interruption of one round does not count. It takes about a tenth of a millisecond per implementation, and
// nothing if there is no choice.
func timeTrain(list []*implementation) []time.Duration {
	const packets, size, rounds = 16, 1440, 5
	took := make([]time.Duration, len(list))
	k, err := newKey(generic, new([KeyLen]byte), 0)
	if err != nil || len(list) < 2 {
		return took // no key will be made, or none to choose
	}
	s, msgs := new(Scratch), make([]Message, packets)
	for j := range msgs {
		msgs[j] = Message{Counter: uint64(j), Text: make([]byte, size+TagLen)}
	}
	for round := range rounds {
		for j, i := range list {
			begun := time.Now()
			i.seal(k.secret, s, msgs)
			i.open(k.secret, s, msgs)
			if d := time.Since(begun); round == 0 || d < took[j] {
				took[j] = d
			}
		}
	}
	return took
}

// fastest is the index of the fastest implementation. A later one must be faster by a tenth than the best before it, so
// that noise does not decide.
func fastest(took []time.Duration) (best int) {
	for i, d := range took {
		if 10*d < 9*took[best] {
			best = i
		}
	}
	return best
}
