// SPDX-License-Identifier: Apache-2.0

package guardpage_test

import (
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/ropewalk/ropewalk/test/guardpage"
)

func TestAccessBeyondEitherEndFaults(t *testing.T) {
	size := 2 * os.Getpagesize()
	memory := guardpage.Map(t, size)
	for _, c := range []struct {
		at     int
		faults bool
	}{{-1, true}, {0, false}, {size - 1, false}, {size, true}} {
		if got := faults(unsafe.Add(unsafe.Pointer(&memory[0]), c.at)); got != c.faults {
			t.Errorf("byte %d of %d: got fault %v, want %v", c.at, size, got, c.faults)
		}
	}
}

func faults(p unsafe.Pointer) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() != nil }()
	*(*byte)(p) = 1
	return false
}
