// SPDX-License-Identifier: Apache-2.0

// Package guardpage gives tests memory in which an access beyond either end faults. It imports nothing of ropewalk, so every
// package's tests can use it.
package guardpage

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Map maps size bytes, whole pages, with a page before and one behind that is inaccessible. The end of the test unmaps them.
func Map(tb testing.TB, size int) []byte {
	tb.Helper()
	page := os.Getpagesize()
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := unix.Munmap(all); err != nil {
			tb.Error(err)
		}
	})
	for _, guard := range [][]byte{all[:page], all[page+size:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			tb.Fatal(err)
		}
	}
	return all[page : page+size : page+size]
}
