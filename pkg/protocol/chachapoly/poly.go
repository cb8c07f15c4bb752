// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"encoding/binary"
	"math/bits"
)

// polyJob is one message to be authenticated as in RFC 8439 section 2.8 without additional data.
// The input is the text, padded with zeros to whole blocks of 16, then eight zero bytes and the
// text's length as 64-bit little-endian. The assembly code depends on the layout.
type polyJob struct {
	key  [32]byte // r, not yet clamped, and s: the first half of ChaCha20's block 0
	text *byte    // n bytes; no byte outside is read. May be nil when n is 0
	n    int
	tag  [16]byte // the result
}

// polyTagGeneric computes j.tag with sequential 64-bit multiplications: for few or short messages, and as the oracle of
// the vector kernels.
func polyTagGeneric(j *polyJob) {
	m := newPolyMAC(&j.key)
	defer m.wipe()
	m.finish(j, 0)
}

// finish authenticates a job's text from an offset on, which 16 divides, and computes its tag.
func (m *polyMAC) finish(j *polyJob, from int) {
	text := j.bytes()[from:]
	for ; len(text) >= 16; text = text[16:] {
		m.block(binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:16]), 1)
	}
	if len(text) > 0 {
		var last [16]byte
		copy(last[:], text)
		m.block(binary.LittleEndian.Uint64(last[:]), binary.LittleEndian.Uint64(last[8:]), 1)
	}
	m.block(0, uint64(j.n), 1)
	m.tag(&j.tag)
}

// polyMAC is Poly1305 (RFC 8439 section 2.5) over whole blocks.
type polyMAC struct {
	h0, h1, h2 uint64 // below 2^131
	r0, r1     uint64 // clamped: below 2^60, and r1 a multiple of 4
	s0, s1     uint64
}

func newPolyMAC(key *[32]byte) *polyMAC {
	m := new(polyMAC)
	m.setKey(key)
	return m
}

func (m *polyMAC) setKey(key *[32]byte) {
	*m = polyMAC{
		r0: binary.LittleEndian.Uint64(key[0:]) & 0x0ffffffc0fffffff,
		r1: binary.LittleEndian.Uint64(key[8:]) & 0x0ffffffc0ffffffc,
		s0: binary.LittleEndian.Uint64(key[16:]),
		s1: binary.LittleEndian.Uint64(key[24:]),
	}
}

// block does h = (h + hi:lo + top*2^128) * r modulo 2^130-5, leaving h below 2^131.
func (m *polyMAC) block(lo, hi, top uint64) {
	h0, c := bits.Add64(m.h0, lo, 0)
	h1, c := bits.Add64(m.h1, hi, c)
	h2 := m.h2 + top + c

	// Columns of 64 bits. h2 is below 8, so its products fit into 64 bits.
	a1, a0 := bits.Mul64(h0, m.r0)
	b1, b0 := bits.Mul64(h1, m.r0)
	c1, c0 := bits.Mul64(h0, m.r1)
	d1, d0 := bits.Mul64(h1, m.r1)
	b0, c = bits.Add64(b0, c0, 0)
	b1, _ = bits.Add64(b1, c1, c)
	d0, c = bits.Add64(d0, h2*m.r0, 0)
	d1, _ = bits.Add64(d1, h2*m.r1, c)
	t1, c := bits.Add64(a1, b0, 0)
	t2, c := bits.Add64(b1, d0, c)
	t3 := d1 + c

	// Add the part above 2^130 times 5: once times 4, in its position, and once times 1.
	f0, f1 := t2&^3, t3
	h0, c = bits.Add64(a0, f0, 0)
	h1, c = bits.Add64(t1, f1, c)
	h2 = t2&3 + c
	h0, c = bits.Add64(h0, f0>>2|f1<<62, 0)
	h1, c = bits.Add64(h1, f1>>2, c)
	m.h0, m.h1, m.h2 = h0, h1, h2+c
}

func (m *polyMAC) tag(tag *[TagLen]byte) {
	lo, hi := m.sum()
	binary.LittleEndian.PutUint64(tag[:], lo)
	binary.LittleEndian.PutUint64(tag[8:], hi)
}

// sum reduces h fully and adds s modulo 2^128.
func (m *polyMAC) sum() (lo, hi uint64) {
	// h is below twice the modulus. h+5 reaches 2^130 when h is not reduced, and without bit 130 it is then the result.
	g0, c := bits.Add64(m.h0, 5, 0)
	g1, c := bits.Add64(m.h1, 0, c)
	use := -((m.h2 + c) >> 2 & 1)
	lo = m.h0&^use | g0&use
	hi = m.h1&^use | g1&use
	lo, c = bits.Add64(lo, m.s0, 0)
	hi, _ = bits.Add64(hi, m.s1, c)
	return lo, hi
}

// wipe must not be inlined: the compiler could remove the stores as dead.
//
//go:noinline
func (m *polyMAC) wipe() { *m = polyMAC{} }
