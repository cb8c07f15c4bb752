// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// guarded maps size bytes, whole pages, with a page before and one behind that is unreadable.
func guarded(t *testing.T, size int) []byte {
	t.Helper()
	page := os.Getpagesize()
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
