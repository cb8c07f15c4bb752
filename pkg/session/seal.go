// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/ropewalk/ropewalk/pkg/wire"

// SealTrain turns the plaintexts that lie in buf as l says into data messages, in place: message i gets the counter
// counter+i, which must come from Reserve(l.Segments), and may be sealed only once. Padding is zeroed here. It returns
// the train's length, l.Size(), or 0 if nothing was sealed: buf is too short for l, l contradicts itself, the counters
// reach RejectAfterMessages, or the session was wiped.
//
// It takes the whole train so that a cipher that works on several messages at once can be put in its place.
func (k *Keypair) SealTrain(s *Scratch, buf []byte, l Layout, counter uint64) int {
	c := k.ciphers.Load()
	if c == nil || !l.valid() || len(buf) < l.Size() || counter > RejectAfterMessages-uint64(l.Segments) {
		return 0
	}
	rest := buf
	for i := range l.Segments {
		plain, padded := l.segment(i)
		end := padded + wire.DataOverhead
		msg := rest[:end:end]
		wire.PutDataHeader(msg, k.remote, counter+uint64(i))
		clear(msg[wire.DataHeaderLen+plain : wire.DataHeaderLen+padded])
		body := msg[wire.DataHeaderLen:]
		c.send.Seal(body[:0], s.setNonce(counter+uint64(i)), body[:padded], nil)
		rest = rest[end:]
	}
	return l.Size()
}
