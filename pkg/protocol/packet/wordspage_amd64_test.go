// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package packet

import (
	"math/rand/v2"
	"testing"

	"github.com/ropewalk/ropewalk/test/guardpage"
)

// TestVectorSumReadsNoAdjacentPage puts texts at both ends of memory between two pages that fault.
func TestVectorSumReadsNoAdjacentPage(t *testing.T) {
	eachVector(t, readsNoAdjacentPage)
}

func readsNoAdjacentPage(t *testing.T, words func([]byte) uint64) {
	const size = 4 * 4096
	memory := guardpage.Map(t, size)
	fillRandom(rand.New(rand.NewPCG(3, 4)), memory)
	for n := leastLen; n <= size; n++ {
		if n > 2000 && n < 8000 || n > 9000 && n < size-300 {
			continue
		}
		for _, b := range [][]byte{memory[:n], memory[size-n:]} {
			if got, want := sumOf(words, b), sumGeneric(b); got != want {
				t.Fatalf("%d bytes: got %#x, want %#x", n, got, want)
			}
		}
	}
}
