// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && !purego

package chachapoly

import (
	"reflect"
	"testing"
)

// layout is the offset of each field that the assembly code in _asm uses.
type layout map[string]uintptr

// checkLayout compares a type with the offsets in _asm, and with its size if that is there, too: in arrays.
func checkLayout[T any](t *testing.T, size uintptr, fields layout) {
	t.Helper()
	of := reflect.TypeFor[T]()
	for name, at := range fields {
		if f, ok := of.FieldByName(name); !ok || f.Offset != at {
			t.Errorf("%s.%s: got offset %d, want %d as in the assembly", of, name, f.Offset, at)
		}
	}
	if size > 0 && of.Size() != size {
		t.Errorf("%s: got %d bytes, want %d as in the assembly", of, of.Size(), size)
	}
}
