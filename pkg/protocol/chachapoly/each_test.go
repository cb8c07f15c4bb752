// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// BenchmarkEach runs every implementation by itself, for _asm/count.
func BenchmarkEach(b *testing.B) {
	for _, i := range implementations() {
		for _, n := range []int{64, 1440} {
			for _, count := range []int{1, 32} {
				for _, op := range []string{"seal", "open"} {
					b.Run(fmt.Sprintf("%s/%dx%d/%s", i.name, count, n, op), func(b *testing.B) {
						each(b, i, slices.Repeat([]int{n}, count), op == "open")
					})
				}
			}
		}
	}
}

// each restores sealed messages before it opens them.
func each(b *testing.B, i *implementation, lengths []int, open bool) {
	r := rand.New(rand.NewPCG(21, 21))
	key := randomKey(r)
	k, scratch := mustKey(b, i, key), new(Scratch)
	s := newSet(b, r, newOracle(b, key), lengths, func() int { return 16 })
	b.SetBytes(int64(len(lengths) * lengths[0]))
	for b.Loop() {
		if open {
			copy(s.buf, s.sealed)
			k.Open(scratch, s.msgs)
		} else {
			k.Seal(scratch, s.msgs)
		}
	}
}
