// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"crypto/subtle"

	"golang.org/x/sys/cpu"
)

const (
	// NEON is the implementation for every arm64 CPU: four or eight blocks of ChaCha20 in vectors, while Poly1305 of another
	// message uses the integer units.
	NEON = "neon"

	// SVE2 is NEON with an instruction of SVE2 (XAR) that saves two in five of ChaCha20's
	// instructions.
	SVE2 = "sve2"
)

// vectorImplementations is the table of implementations.
var vectorImplementations = []*implementation{
	{name: SVE2, supported: hasSVE2, seal: trainSVE2.seal, open: trainSVE2.open},
	{name: NEON, supported: hasNEON, seal: trainNEON.seal, open: trainNEON.open},
}

var (
	trainNEON = &trainCipher{}
	trainSVE2 = &trainCipher{sve2: true}
)

func hasNEON() bool { return cpu.ARM64.HasASIMD }
func hasSVE2() bool { return hasNEON() && cpu.ARM64.HasSVE2 }

const (
	// batchLen is the number of messages that share passes of ChaCha20 for their one-time keys and ends.
	batchLen = 32

	// laneGroups is the most passes that those take: a one-time key and four blocks of each message.
	laneGroups = batchLen * 5 / 4

	// minSVE2Bytes is the size of a set from which SVE2 is used. Linux before 6.2 disables SVE at each system call, and
	// the next use of it is a trap ("arm64/sve: Leave SVE enabled on syscall if we don't context switch").
	minSVE2Bytes = 4096
)

// trainCipher seals and opens messages with the kernels of one instruction set.
type trainCipher struct{ sve2 bool }

type vectorScratch struct {
	works  [batchLen]work
	lanes  [laneGroups]laneGroup
	stream [laneGroups * passLen]byte
	state  [16]uint32
	spill  [spillLen]byte
	kernel kernel
}

func (t *trainCipher) seal(k *secret, s *Scratch, msgs []Message) {
	v := &s.vector
	v.kernel = t.kernel(msgs)
	for len(msgs) > 0 {
		batch := msgs[:min(batchLen, len(msgs))]
		msgs = msgs[len(batch):]
		v.sealBatch(k, batch)
	}
}

func (t *trainCipher) open(k *secret, s *Scratch, msgs []Message) {
	v := &s.vector
	v.kernel = t.kernel(msgs)
	for len(msgs) > 0 {
		batch := msgs[:min(batchLen, len(msgs))]
		msgs = msgs[len(batch):]
		v.openBatch(k, batch)
	}
}

func (t *trainCipher) kernel(msgs []Message) kernel {
	if !t.sve2 {
		return kernelNEON
	}
	bytes := 0
	for i := range msgs {
		if bytes += len(msgs[i].Text); bytes >= minSVE2Bytes {
			return kernelSVE2
		}
	}
	return kernelNEON
}

// sealBatch encrypts each message while it authenticates the one before.
func (s *vectorScratch) sealBatch(k *secret, batch []Message) {
	works := s.begin(k, batch)
	var last *work
	for i := range works {
		s.step(&works[i], last)
		last = &works[i]
	}
	s.step(nil, last)
	for i := range works {
		w := &works[i]
		w.mac.tag((*[TagLen]byte)(w.msg.Text[len(w.text):]))
	}
	s.end(works)
}

// openBatch authenticates each message while it decrypts the one before, if that is valid.
func (s *vectorScratch) openBatch(k *secret, batch []Message) {
	for i := range batch {
		batch[i].Valid = false
	}
	works := s.begin(k, batch)
	var last *work
	for i := range works {
		w := &works[i]
		s.step(last, w)
		var tag [TagLen]byte
		w.mac.tag(&tag)
		w.msg.Valid = subtle.ConstantTimeCompare(tag[:], w.msg.Text[len(w.text):]) == 1
		if last = w; !w.msg.Valid {
			last = nil
		}
	}
	s.step(last, nil)
	s.end(works)
}

// begin computes the keystream of one-time keys and ends. A message without room for a tag gets no work.
func (s *vectorScratch) begin(k *secret, batch []Message) []work {
	n, blocks := 0, 0
	for i := range batch {
		m := &batch[i]
		if len(m.Text) < TagLen {
			continue
		}
		w := &s.works[n]
		n++
		w.msg, w.text, w.stream = m, m.Text[:len(m.Text)-TagLen], 64*blocks
		blocks = s.cut(w, blocks)
	}
	if n == 0 {
		return nil
	}
	s.state = k.state
	s.kernel.stream(s, (blocks+3)/4)
	for i := range n {
		w := &s.works[i]
		w.mac.setKey((*[32]byte)(s.stream[w.stream:]))
	}
	return s.works[:n]
}

// cut assigns lanes to a message's one-time key and to the end of its text, from the given block
// on. It returns the next block.
func (s *vectorScratch) cut(w *work, block int) int {
	lo, hi := uint32(w.msg.Counter), uint32(w.msg.Counter>>32)
	counter, last := uint32(0), uint32(len(w.text)+63)/64
	for first := uint32(len(w.text)/passLen*passLen/64) + 1; ; first++ {
		g, i := &s.lanes[block>>2], block&3
		g.counter[i], g.lo[i], g.hi[i] = counter, lo, hi
		block++
		if first > last {
			return block
		}
		counter = first
	}
}

// end leaves neither keys nor keystream nor texts.
func (s *vectorScratch) end(works []work) {
	if n := len(works); n > 0 {
		clear(s.stream[:min(works[n-1].stream+2*passLen, len(s.stream))])
	}
	clear(works)
	clear(s.state[:])
	clear(s.spill[:])
}
