// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

const longest = 9000

// lengths of the interesting kinds: at and around the sizes of blocks, passes and packets.
var edges = []int{0, 1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 1008, 1023, 1024, 1025, 1420, 1440, 4096}

func TestMatchesXCryptoAtEveryLength(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(1, 1))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for n := range longest + 1 {
			newSet(t, r, o, []int{n}, func() int { return n % 64 }).check(t, k, scratch)
		}
	})
}

func TestMatchesXCryptoAtEveryLengthInMixedSets(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(2, 2))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for rest := r.Perm(longest + 1); len(rest) > 0; {
			n := min(1+r.IntN(70), len(rest))
			newSet(t, r, o, rest[:n], func() int { return 1 + r.IntN(64) }).check(t, k, scratch)
			rest = rest[n:]
		}
	})
}

func TestMatchesXCryptoOnSetsOfEverySize(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(3, 3))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for n := range 200 {
			lengths := make([]int, n)
			for i := range lengths {
				lengths[i] = 60 + r.IntN(1393)
				if n%3 == 0 {
					lengths[i] = 1440
				}
			}
			newSet(t, r, o, lengths, func() int { return 16 }).check(t, k, scratch)
		}
	})
}

func TestWritesNothingOutsideText(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(4, 4))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for offset := range 64 {
			newSet(t, r, o, edges, func() int { return offset + 1 }).check(t, k, scratch)
			for _, n := range edges {
				newSet(t, r, o, []int{n}, func() int { return offset }).check(t, k, scratch)
			}
		}
	})
}

func FuzzSetsMatchXCrypto(f *testing.F) {
	f.Add(uint64(1), []byte{0, 0})
	f.Add(uint64(2), []byte{90, 0, 90, 0, 90, 0, 90, 0, 90, 0, 90, 0, 90, 0, 90, 0})
	f.Add(uint64(3), []byte{4, 0, 3, 15, 5, 7, 88, 12, 1, 1, 1, 2, 1, 3, 200, 15})
	f.Add(uint64(4), bytes.Repeat([]byte{90, 0}, 19))
	f.Fuzz(func(t *testing.T, seed uint64, shape []byte) {
		var lengths []int
		for ; len(shape) >= 2 && len(lengths) < 70; shape = shape[2:] {
			lengths = append(lengths, int(shape[0])*16+int(shape[1])%16)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		key := randomKey(r)
		o := newOracle(t, key)
		for _, impl := range implementations() {
			k, scratch := mustKey(t, impl, key), new(Scratch)
			newSet(t, r, o, lengths, func() int { return r.IntN(65) }).check(t, k, scratch)
			tampered(t, r, newSet(t, r, o, lengths, func() int { return r.IntN(65) }), k, scratch)
		}
	})
}
