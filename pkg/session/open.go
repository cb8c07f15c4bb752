// SPDX-License-Identifier: Apache-2.0

package session

import (
	"github.com/ropewalk/ropewalk/pkg/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// Message is what became of one received data message.
type Message struct {
	// Plain is the decrypted packet with its padding, a part of the buffer that was opened; empty for a keepalive,
	// nil for what was dropped.
	Plain []byte
	// Drop is None, or why the message must be discarded.
	Drop drop.Reason
}

// Messages is the number of messages in size bytes that hold messages of segSize bytes back to back, the last one
// perhaps shorter. A segSize of 0 or less means a single message.
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

// OpenTrain opens the data messages that lie in buf back to back, segSize bytes each but perhaps the last, in place, and
// says in out what became of each. They should all be for this session; one that is not is dropped. It returns the
// number of messages judged: Messages(len(buf), segSize), or len(out) if that is less. now is the present instant.
//
// Reasons to drop are RXExpired (the session is too old, or was wiped, or the counter reaches RejectAfterMessages),
// RXAuth, RXReplay, RXTooShort, RXBadType, and RXUnknownIndex (it bears another session's index). Only authenticated
// messages reach the replay window, which is updated once per 64 messages. Several goroutines may open trains of one
// session at once, each with its own Scratch.
//
// OpenTrain is DecryptTrain and AcceptTrain in one.
func (k *Keypair) OpenTrain(s *Scratch, now int64, buf []byte, segSize int, out []Message) int {
	n := k.DecryptTrain(s, now, buf, segSize, out)
	k.AcceptTrain(s, buf, segSize, out[:n])
	return n
}

// DecryptTrain is the part of OpenTrain that keeps no order and takes the time: all but the replay window. Nothing in out
// may be used before AcceptTrain has judged it too.
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
		m := min(len(out), chunk)
		buf = k.decryptChunk(s, c.recv, buf, segSize, out[:m])
		out = out[m:]
	}
	return n
}

// AcceptTrain drops from out, which DecryptTrain has made of buf, what was received before. Trains of a flow are to be
// accepted in the order in which they came: of two equal messages the first is the one that counts.
func (k *Keypair) AcceptTrain(s *Scratch, buf []byte, segSize int, out []Message) {
	if segSize <= 0 {
		segSize = len(buf)
	}
	for len(out) > 0 {
		m := min(len(out), chunk)
		k.acceptChunk(s, buf, segSize, out[:m])
		out, buf = out[m:], buf[min(m*segSize, len(buf)):]
	}
}

// decryptChunk opens len(out) messages, at most chunk, and returns what follows them in buf.
func (k *Keypair) decryptChunk(s *Scratch, recv *chachapoly.Key, buf []byte, segSize int, out []Message) []byte {
	if segSize <= 0 {
		segSize = len(buf)
	}
	n := 0
	for i := range out {
		msg := buf[:min(segSize, len(buf))]
		buf = buf[len(msg):]
		if out[i] = (Message{Drop: k.check(msg)}); out[i].Drop == drop.None {
			s.msgs[n] = chachapoly.Message{Counter: wire.Counter(msg), Text: wire.Ciphertext(msg)}
			s.index[n] = uint8(i)
			n++
		}
	}
	recv.Open(&s.cipher, s.msgs[:n])
	for i := range s.msgs[:n] {
		m, o := &s.msgs[i], &out[s.index[i]]
		if !m.Valid {
			o.Drop = drop.RXAuth
			continue
		}
		end := len(m.Text) - chachapoly.TagLen
		o.Plain = m.Text[:end:end]
	}
	return buf
}

// acceptChunk drops those of the decrypted messages that were seen before. Decrypting leaves headers alone.
func (k *Keypair) acceptChunk(s *Scratch, buf []byte, segSize int, out []Message) {
	authentic := 0
	for i := range out {
		if out[i].Drop == drop.None {
			s.counters[authentic], s.index[authentic] = wire.Counter(buf[i*segSize:]), uint8(i)
			authentic++
		}
	}
	k.window.AcceptRun(s.counters[:authentic], s.fresh[:authentic])
	for i, fresh := range s.fresh[:authentic] {
		if !fresh {
			out[s.index[i]] = Message{Drop: drop.RXReplay}
		}
	}
}

// check looks at what can be seen of a message before it is decrypted.
func (k *Keypair) check(msg []byte) drop.Reason {
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
