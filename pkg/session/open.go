// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/cipher"

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
func (k *Keypair) OpenTrain(s *Scratch, now int64, buf []byte, segSize int, out []Message) int {
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
		buf = k.openChunk(s, c.recv, buf, segSize, out[:m])
		out = out[m:]
	}
	return n
}

// openChunk opens len(out) messages, at most chunk, and returns what follows them in buf.
func (k *Keypair) openChunk(s *Scratch, recv cipher.AEAD, buf []byte, segSize int, out []Message) []byte {
	if segSize <= 0 {
		segSize = len(buf)
	}
	authentic := 0
	for i := range out {
		msg := buf[:min(segSize, len(buf))]
		buf = buf[len(msg):]
		out[i] = k.open(s, recv, msg)
		if out[i].Drop == drop.None {
			s.counters[authentic] = wire.Counter(msg)
			s.index[authentic] = uint8(i)
			authentic++
		}
	}
	k.window.AcceptRun(s.counters[:authentic], s.fresh[:authentic])
	for i, fresh := range s.fresh[:authentic] {
		if !fresh {
			out[s.index[i]] = Message{Drop: drop.RXReplay}
		}
	}
	return buf
}

func (k *Keypair) open(s *Scratch, recv cipher.AEAD, msg []byte) Message {
	if reason := k.check(msg); reason != drop.None {
		return Message{Drop: reason}
	}
	body := wire.Ciphertext(msg)
	plain, err := recv.Open(body[:0], s.setNonce(wire.Counter(msg)), body, nil)
	if err != nil {
		return Message{Drop: drop.RXAuth}
	}
	return Message{Plain: plain}
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
