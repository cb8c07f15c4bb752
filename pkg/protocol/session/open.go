// SPDX-License-Identifier: Apache-2.0

package session

import (
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Message is the result of opening one received data message.
type Message struct {
	// Padded is the decrypted packet with its padding, a slice of the opened buffer; empty for a keepalive, nil for a
	// dropped message.
	Padded []byte
	// Drop is None, or the reason to drop the message.
	Drop drop.Reason
}

// Messages returns the number of messages of segSize bytes, the last perhaps shorter, in size bytes. A segSize of 0
// or less means a single message.
func Messages(size, segSize int) int {
	switch {
	case size <= 0:
		return 0
	case segSize <= 0:
		return 1
	default:
		return (size-1)/segSize + 1
	}
}

// OpenTrain opens the data messages in buf, each of segSize bytes except perhaps the last, in place, and stores the
// results in out. They should all belong to this session; others are dropped. It returns the number of results:
// Messages(len(buf), segSize), or len(out) if that is less. now is the current instant.
//
// The drop reasons are RXExpired, RXAuth, RXReplay, RXTooShort, RXBadType, and RXUnknownIndex (the
// index of another session). RXExpired means that the session is too old or wiped, or that the
// counter reaches RejectAfterMessages. Only authenticated messages reach the replay window, which
// is updated once per 64 messages. Several goroutines may open trains of one session at once, each
// with its own Scratch.
//
// OpenTrain is DecryptTrain and AcceptTrain in one.
func (k *Keypair) OpenTrain(s *Scratch, now int64, buf []byte, segSize int, out []Message) int {
	n := k.DecryptTrain(s, now, buf, segSize, out)
	k.AcceptTrain(s, buf, segSize, out[:n])
	return n
}

// DecryptTrain is the expensive part of OpenTrain, which may run in any order: all but the replay window. Results
// must not be used before AcceptTrain has processed them.
func (k *Keypair) DecryptTrain(s *Scratch, now int64, buf []byte, segSize int, out []Message) int {
	n := min(Messages(len(buf), segSize), len(out))
	out = out[:n]
	c := k.ciphers.Load()
	if c == nil || k.Expired(now) {
		for i := range out {
			out[i] = Message{Drop: drop.RXExpired}
		}
		return n
	}
	for len(out) > 0 {
		m := min(len(out), chunkLen)
		buf = k.decryptChunk(s, c.recv, buf, segSize, out[:m])
		out = out[m:]
	}
	return n
}

// AcceptTrain drops replayed messages from out, the result of DecryptTrain for buf. Trains of a flow must be accepted
// in the order of arrival: of two equal messages the first counts.
func (k *Keypair) AcceptTrain(s *Scratch, buf []byte, segSize int, out []Message) {
	if segSize <= 0 {
		segSize = len(buf)
	}
	for len(out) > 0 {
		m := min(len(out), chunkLen)
		k.acceptChunk(s, buf, segSize, out[:m])
		out, buf = out[m:], buf[min(m*segSize, len(buf)):]
	}
}

// decryptChunk opens len(out) messages, at most chunkLen, and returns the rest of buf.
func (k *Keypair) decryptChunk(s *Scratch, recv *chachapoly.Key, buf []byte, segSize int, out []Message) []byte {
	if segSize <= 0 {
		segSize = len(buf)
	}
	n := 0
	for i := range out {
		msg := buf[:min(segSize, len(buf))]
		buf = buf[len(msg):]
		n = k.queue(s, n, msg, i, out)
	}
	s.open(recv, n, out)
	return buf
}

// DecryptEach is DecryptTrain for len(out) messages, at most MaxEach, that are anywhere in memory.
func (k *Keypair) DecryptEach(s *Scratch, now int64, msgs [][]byte, out []Message) {
	c, n := k.ciphers.Load(), 0
	expired := c == nil || k.Expired(now)
	for i := range out {
		if expired {
			out[i] = Message{Drop: drop.RXExpired}
			continue
		}
		n = k.queue(s, n, msgs[i], i, out)
	}
	if n > 0 {
		s.open(c.recv, n, out)
	}
}

// queue makes a message the next one after n to open, unless its header is wrong, and returns the number of messages to open. Its result will
// be out[i].
func (k *Keypair) queue(s *Scratch, n int, msg []byte, i int, out []Message) int {
	if out[i] = (Message{Drop: k.checkHeader(msg)}); out[i].Drop != drop.None {
		return n
	}
	s.msgs[n] = chachapoly.Message{Counter: wire.Counter(msg), Text: wire.Ciphertext(msg)}
	s.index[n] = uint8(i)
	return n + 1
}

// open decrypts the first n messages, and stores the results in out.
func (s *Scratch) open(recv *chachapoly.Key, n int, out []Message) {
	recv.Open(&s.cipher, s.msgs[:n])
	for i := range s.msgs[:n] {
		m, o := &s.msgs[i], &out[s.index[i]]
		if !m.Valid {
			o.Drop = drop.RXAuth
			continue
		}
		end := len(m.Text) - chachapoly.TagLen
		o.Padded = m.Text[:end:end]
	}
}

// acceptChunk drops replayed messages. Decryption has left the headers unchanged.
func (k *Keypair) acceptChunk(s *Scratch, buf []byte, segSize int, out []Message) {
	authentic, all := 0, uint64(0)
	for i := range out {
		if out[i].Drop == drop.None {
			c := wire.Counter(buf[i*segSize:])
			s.counters[authentic], s.index[authentic] = c, uint8(i)
			authentic++
			all |= c
		}
	}
	if all < streamBit {
		k.window.AcceptRun(s.counters[:authentic], s.fresh[:authentic])
	} else {
		k.acceptStreams(s.counters[:authentic], s.fresh[:authentic])
	}
	for i, fresh := range s.fresh[:authentic] {
		if !fresh {
			out[s.index[i]] = Message{Drop: drop.RXReplay}
		}
	}
}

// checkHeader checks a message before it is decrypted.
func (k *Keypair) checkHeader(msg []byte) drop.Reason {
	t, reason := wire.Classify(msg)
	switch {
	case reason != drop.None:
		return reason
	case t != wire.TypeData:
		return drop.RXBadType
	case wire.DataReceiver(msg) != k.local:
		return drop.RXUnknownIndex
	case wire.Counter(msg) >= RejectAfterMessages:
		return drop.RXExpired
	default:
		return drop.None
	}
}
