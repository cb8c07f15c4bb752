// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"reflect"
	"unsafe"
)

// wipe overwrites the key, which must be unused: it runs as the Key's cleanup, and Seal and Open keep the Key alive.
func (s *secret) wipe() {
	clear(s.state[:])
	if key := aeadKey(s.aead); key != nil {
		clear(key[:])
	}
	s.wiped.Store(true)
}

// aeadKey finds x/crypto's copy of the key, for which x/crypto has no wipe. It is safe because it
// looks the field up by name and type in the struct behind the pointer. The caller alone owns the
// cipher. It returns nil for a release with another layout; a test fails on nil.
func aeadKey(aead any) *[KeyLen]byte {
	v := reflect.ValueOf(aead)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil
	}
	key := v.Elem().FieldByName("key")
	if !key.IsValid() || key.Type() != reflect.TypeFor[[KeyLen]byte]() {
		return nil
	}
	return (*[KeyLen]byte)(unsafe.Pointer(key.UnsafeAddr()))
}

// bytes returns the text as a slice. It is safe because pointer and length of a polyJob come from one slice.
func (j *polyJob) bytes() []byte { return unsafe.Slice(j.text, j.n) }
