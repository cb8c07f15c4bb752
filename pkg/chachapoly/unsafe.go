// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"reflect"
	"unsafe"
)

// wipe overwrites the key. Nothing may use it any more: it is the Key's cleanup, and Seal and Open keep the Key alive.
func (s *secret) wipe() {
	clear(s.state[:])
	if key := aeadKey(s.aead); key != nil {
		clear(key[:])
	}
	s.wiped.Store(true)
}

// aeadKey finds x/crypto's copy of the key, for which it has no wipe. What makes it safe: the field is looked up by
// name and type in a struct that a pointer leads to, so a release that looks different yields nil, and the caller owns
// the cipher alone. (A test fails on nil.)
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

// bytes is the text as a slice. It is safe because who makes a polyJob takes pointer and length from one slice.
func (j *polyJob) bytes() []byte { return unsafe.Slice(j.text, j.n) }
