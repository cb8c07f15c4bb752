// SPDX-License-Identifier: Apache-2.0

package chachapoly

import "bytes"

// selfTest reports whether i seals as Generic does and opens the result. A CPU or emulator that
// reports features it does not implement correctly must not lose packets.
func selfTest(i *implementation) bool {
	const n, step = 17, 61 // messages of up to 976 bytes, 8 KiB in all, reach every kernel
	var key [KeyLen]byte
	var want, got [n]Message
	for j := range n {
		key[j] = byte(j + 1)
		want[j] = Message{Counter: uint64(j) << 30, Text: bytes.Repeat([]byte{byte(j)}, step*j+TagLen)}
		got[j] = Message{Counter: want[j].Counter, Text: bytes.Clone(want[j].Text)}
	}
	k, err := newKey(only(generic), &key, 0)
	if err != nil {
		return true // no key will be made
	}
	s := new(Scratch)
	sealEach(k.secret, s, want[:])
	i.seal(k.secret, s, got[:])
	for j := range n {
		if !bytes.Equal(got[j].Text, want[j].Text) {
			return false
		}
	}
	i.open(k.secret, s, got[:])
	ok := true
	for j := range n {
		ok = ok && got[j].Valid && bytes.Count(got[j].Text[:step*j], []byte{byte(j)}) == step*j
	}
	return ok
}
