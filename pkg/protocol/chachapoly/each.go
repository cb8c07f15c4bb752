// SPDX-License-Identifier: Apache-2.0

package chachapoly

import "encoding/binary"

func sealEach(k *secret, s *Scratch, msgs []Message) {
	for i := range msgs {
		if n := len(msgs[i].Text) - TagLen; n >= 0 {
			text := msgs[i].Text[:n]
			k.aead.Seal(text[:0], s.setNonce(k, msgs[i].Counter), text, nil)
		}
	}
}

func openEach(k *secret, s *Scratch, msgs []Message) {
	for i := range msgs {
		text := msgs[i].Text
		_, err := k.aead.Open(text[:0], s.setNonce(k, msgs[i].Counter), text, nil)
		msgs[i].Valid = err == nil
	}
}

func (s *Scratch) setNonce(k *secret, counter uint64) []byte {
	binary.LittleEndian.PutUint32(s.nonce[:], k.state[13])
	binary.LittleEndian.PutUint64(s.nonce[4:], counter)
	return s.nonce[:]
}
