// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
)

// TestReadsNoAdjacentPage puts texts against pages that must not be touched, not even to be read.
func TestReadsNoAdjacentPage(t *testing.T) {
	size := 2 * max(os.Getpagesize(), 4096)
	memory := guarded(t, size)
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(13, 13))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for n := 0; n < 4096; n++ {
			if n > 300 && n%64 > 1 {
				continue
			}
			first, last := memory[:n+TagLen:n+TagLen], memory[size-n-TagLen:]
			copy(first, randomBytes(r, n))
			copy(last, randomBytes(r, n))
			msgs := []Message{{Counter: 1, Text: first}, {Counter: 2, Text: last}}
			want := [][]byte{o.seal(1, first[:n]), o.seal(2, last[:n])}
			k.Seal(scratch, msgs)
			for i, m := range msgs {
				if !bytes.Equal(m.Text, want[i]) {
					t.Fatalf("message %d, %d bytes: got wrong ciphertext", i, n)
				}
			}
			if k.Open(scratch, msgs); !msgs[0].Valid || !msgs[1].Valid {
				t.Fatalf("%d bytes: got invalid, want valid", n)
			}
		}
	})
}
