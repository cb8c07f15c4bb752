// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ropewalk/ropewalk/test/guardpage"
)

// TestReadsNoAdjacentPage puts texts against pages that must not be touched, not even to be read.
func TestReadsNoAdjacentPage(t *testing.T) {
	const most = 4096
	memory := guardpage.Map(t, 2*max(os.Getpagesize(), most))
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(13, 13))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for n := range most {
			rest := most - 1 - n
			if testing.Short() && n > 300 && rest > 300 && n%64 > 1 {
				continue
			}
			first, last := memory[:n+TagLen:n+TagLen], memory[len(memory)-rest-TagLen:]
			msgs := []Message{{Counter: 1, Text: first}, {Counter: 2, Text: last}}
			copy(first, randomBytes(r, n))
			want := [][]byte{o.seal(1, first[:n]), o.seal(2, last[:rest])}
			k.Seal(scratch, msgs)
			for i, m := range msgs {
				if !bytes.Equal(m.Text, want[i]) {
					t.Fatalf("message %d, %d bytes: got wrong ciphertext", i, len(m.Text))
				}
			}
			if k.Open(scratch, msgs); !msgs[0].Valid || !msgs[1].Valid {
				t.Fatalf("%d and %d bytes: got invalid, want valid", n, rest)
			}
		}
	})
}
