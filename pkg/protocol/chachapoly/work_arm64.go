// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"crypto/subtle"
	"encoding/binary"
)

// work is one message on its way.
type work struct {
	msg    *Message
	text   []byte // without the tag
	stream int    // where the block with the one-time key is, and behind it the keystream of the end that fills no pass
	mac    polyMAC
}

// step encrypts or decrypts x and authenticates m, whole passes of both at once. Each may be nil; they are different
// messages.
func (s *vectorScratch) step(x, m *work) {
	both := 0
	if x != nil {
		s.state[14], s.state[15] = uint32(x.msg.Counter), uint32(x.msg.Counter>>32)
		if m != nil {
			both = min(len(x.text), len(m.text)) / passLen
		}
	}
	if both > 0 {
		s.state[12] = 1
		s.kernel.xorMAC(s, x.text, both, m)
	}
	if x != nil {
		s.xorRest(x, both*passLen)
	}
	if m != nil {
		m.macRest(both * passLen)
	}
}

// xorRest encrypts or decrypts from an offset on.
func (s *vectorScratch) xorRest(x *work, from int) {
	rest := x.text[from:]
	if passes := len(rest) / passLen; passes > 0 {
		s.state[12] = uint32(1 + from/64)
		s.kernel.xor(s, rest, passes)
		rest = rest[passes*passLen:]
	}
	subtle.XORBytes(rest, rest, s.stream[x.stream+64:])
}

// macRest authenticates from an offset on, and the lengths (RFC 8439 2.8).
func (w *work) macRest(from int) {
	rest := w.text[from:]
	if blocks := len(rest) / 16; blocks > 0 {
		macBlocks(&w.mac, &rest[0], blocks)
		rest = rest[16*blocks:]
	}
	if len(rest) > 0 {
		var last [16]byte
		copy(last[:], rest)
		w.mac.block(binary.LittleEndian.Uint64(last[:]), binary.LittleEndian.Uint64(last[8:]), 1)
	}
	w.mac.block(0, uint64(len(w.text)), 1)
}

// kernel selects the assembly. Calls through variables would make the arguments escape to the heap.
type kernel int

const (
	kernelNEON kernel = iota
	kernelSVE2
)

func (k kernel) stream(s *vectorScratch, passes int) {
	if k == kernelSVE2 {
		streamSVE2(&s.state, &s.lanes[0], passes, &s.stream[0])
	} else {
		streamNEON(&s.state, &s.lanes[0], passes, &s.stream[0])
	}
}

func (k kernel) xor(s *vectorScratch, text []byte, passes int) {
	if k == kernelSVE2 {
		xorSVE2(&s.state, &text[0], passes)
	} else {
		xorNEON(&s.state, &text[0], passes)
	}
}

// xorMAC encrypts or decrypts text while it authenticates m.
func (k kernel) xorMAC(s *vectorScratch, text []byte, passes int, m *work) {
	data := m.text
	if twice := passes / 2; twice > 0 {
		if k == kernelSVE2 {
			xorMAC8SVE2(&s.state, &text[0], twice, &m.mac, &data[0], &s.spill[0])
		} else {
			xorMAC8NEON(&s.state, &text[0], twice, &m.mac, &data[0], &s.spill[0])
		}
		s.state[12] += uint32(8 * twice)
		text, data = text[2*twice*passLen:], data[2*twice*passLen:]
	}
	if passes%2 == 0 {
		return
	}
	if k == kernelSVE2 {
		xorMACSVE2(&s.state, &text[0], 1, &m.mac, &data[0])
	} else {
		xorMACNEON(&s.state, &text[0], 1, &m.mac, &data[0])
	}
}
