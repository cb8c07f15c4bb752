// SPDX-License-Identifier: Apache-2.0

package session

import (
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// SealTrain encrypts the plaintexts in buf, laid out as l describes, into data messages, in place.
// Message i gets the counter counter+i, which must come from Reserve(l.Segments) and must be used
// only once. SealTrain zeroes the padding. It returns the train's length, l.Size(), or 0 if
// nothing was sealed. Then buf is too short for l, l is invalid, the counters reach
// RejectAfterMessages, or the session was wiped.
func (k *Keypair) SealTrain(s *Scratch, buf []byte, l Layout, counter uint64) int {
	c := k.ciphers.Load()
	if c == nil || !l.valid() || len(buf) < l.Size() || counter > RejectAfterMessages-uint64(l.Segments) {
		return 0
	}
	n := 0
	for i := range l.Segments {
		plain, padded := l.segment(i)
		end := padded + wire.DataOverhead
		msg := buf[:end:end]
		clear(msg[wire.DataHeaderLen+plain : wire.DataHeaderLen+padded])
		s.msgs[n] = k.message(msg, counter+uint64(i))
		buf = buf[end:]
		if n++; n == chunkLen {
			c.send.Seal(&s.cipher, s.msgs[:n])
			n = 0
		}
	}
	c.send.Seal(&s.cipher, s.msgs[:n])
	return l.Size()
}

// SealEach encrypts each of msgs into a data message, in place. A message has wire.DataHeaderLen
// bytes for the header, the plaintext with its padding, and wire.TagLen bytes for the tag. Message
// i gets the counter counter+i, as in SealTrain. It returns false if nothing was sealed: a message
// is too short or too long, the counters reach RejectAfterMessages, or the session was wiped.
func (k *Keypair) SealEach(s *Scratch, msgs [][]byte, counter uint64) bool {
	c := k.ciphers.Load()
	if c == nil || uint64(len(msgs)) > RejectAfterMessages || counter > RejectAfterMessages-uint64(len(msgs)) {
		return false
	}
	for _, msg := range msgs {
		if len(msg) < wire.DataOverhead || len(msg) > maxMessage {
			return false
		}
	}
	for len(msgs) > 0 {
		n := min(len(msgs), chunkLen)
		for i, msg := range msgs[:n] {
			s.msgs[i] = k.message(msg, counter+uint64(i))
		}
		c.send.Seal(&s.cipher, s.msgs[:n])
		msgs, counter = msgs[n:], counter+uint64(n)
	}
	return true
}

// message writes the header of msg and returns the cipher's job.
func (k *Keypair) message(msg []byte, counter uint64) chachapoly.Message {
	wire.PutDataHeader(msg, k.remote, counter)
	return chachapoly.Message{Counter: counter, Text: msg[wire.DataHeaderLen:]}
}
