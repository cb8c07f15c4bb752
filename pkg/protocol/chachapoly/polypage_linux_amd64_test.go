// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestVectorTagReadsNothingOutsideText puts texts at both ends of memory between two pages that fault.
func TestVectorTagReadsNothingOutsideText(t *testing.T) {
	const size = 3 * 4096
	memory := guarded(t, size)
	for i := range memory {
		memory[i] = byte(i * i >> 3)
	}
	eachSplit(t, func(t *testing.T, log int) {
		for _, n := range awkwardLengths() {
			if n > size || n > 300 && n%64 > 2 {
				continue
			}
			jobs := []polyJob{polyFills[0].job(0), polyFills[0].job(0)}
			jobs[0].setText(memory[size-n:])
			jobs[1].setText(memory[:n])
			if log == 3 {
				checkTags(t, jobs[:1], inLanes(log))
				jobs = jobs[1:]
			}
			checkTags(t, jobs, inLanes(log))
			checkTags(t, jobs, tags512)
		}
	})
}

// guarded maps size bytes, whole pages, with a page before and one behind that is unreadable.
func guarded(t *testing.T, size int) []byte {
	t.Helper()
	const page = 4096
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
