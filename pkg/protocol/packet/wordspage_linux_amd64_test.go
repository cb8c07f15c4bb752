// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package packet

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// TestVectorSumReadsNoAdjacentPage puts texts at both ends of memory between two pages that fault.
func TestVectorSumReadsNoAdjacentPage(t *testing.T) {
	needs512(t)
	const size = 4 * 4096
	memory := guarded(t, size)
	fillRandom(rand.New(rand.NewPCG(3, 4)), memory)
	for n := leastLen; n <= size; n++ {
		if n > 2000 && n < 8000 || n > 9000 && n < size-300 {
			continue
		}
		for _, b := range [][]byte{memory[:n], memory[size-n:]} {
			if got, want := sum512(b), sumGeneric(b); got != want {
				t.Fatalf("%d bytes: got %#x, want %#x", n, got, want)
			}
		}
	}
}

// guarded maps size bytes, whole pages, with a page before and one behind that is unreadable.
func guarded(t *testing.T, size int) []byte {
	t.Helper()
	page := unix.Getpagesize()
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{all[:page], all[page+size:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return all[page : page+size : page+size]
}
