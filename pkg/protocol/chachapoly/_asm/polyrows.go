// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lead does the rows before all lanes have begun.
func (g *polyGen) lead(l reg.GPVirtual, h limbs, off reg.VecVirtual) {
	n := GP64()
	MOVQ(Mem{Base: l, Disp: lanesLead}, n)
	TESTQ(n, n)
	JE(LabelRef("led"))
	Label("lead")
	g.row(h, off, g.main, Mem{})
	VPADDQ_BCST(Mem{Base: l, Disp: lanesStride}, off, off)
	DECQ(n)
	JNE(LabelRef("lead"))
	Label("led")
}

// row does 64 bytes of each lane. Any part of them may lie before the text's begin or after its
// end. Absent bytes are zero and not read, and absent blocks lack bit 128. end, if given, is the
// length that the last block carries.
func (g *polyGen) row(h limbs, off reg.VecVirtual, table reg.GPVirtual, end Mem) {
	g.bounds(off)
	w := g.maskedRow()
	if end.Base != nil {
		VPORQ(end, w[3].hi, w[3].hi)
	}
	p := g.empty()
	bit := g.broadcast(1 << 40)
	for i := 3; i >= 0; i-- {
		k := K()
		VPCMPQ(U8(5), g.broadcast(uint64(-16*i)), off, k) // off >= -16*i
		m := g.split(w[i].lo, w[i].hi)
		VPORQ(bit, m[2], k, m[2])
		if i == 0 {
			add(m, h)
		}
		g.addMul(p, m, Mem{Base: table, Disp: i * powerSize})
	}
	g.reduce(p, h)
}

func add(m, h limbs) {
	for i := range m {
		VPADDQ(h[i], m[i], m[i])
	}
}

// bounds computes the byte masks of a row, (1<<end) - (1<<begin) with shifts of 64 and more giving
// 0, and its addresses. Nothing is read of a text that has not begun, and the address is the
// text's. A masked load from a page that is not there does not fault, but takes hundreds of
// cycles.
func (g *polyGen) bounds(off reg.VecVirtual) {
	begin, end, one, none, addr := ZMM(), ZMM(), g.broadcast(1), ZMM(), ZMM()
	zero(none)
	VPSUBQ(off, none, begin)
	VPMAXSQ(none, begin, begin)
	VMOVDQA64(g.at(scratchLen), end)
	VPSUBQ(off, end, end)
	VPSLLVQ(begin, one, begin)
	VPSLLVQ(end, one, end)
	VPSUBQ(begin, end, end)
	g.spill(end, scratchMask)
	begun := K()
	VPCMPQ(U8(6), g.broadcast(^uint64(vec-1)), off, begun) // off > -64
	VMOVDQA64_Z(off, begun, addr)
	VPADDQ(g.at(scratchText), addr, addr)
	g.spill(addr, scratchAddr)
}

// spill stores quadwords that are then read one by one: from the upper half of a 64-byte store the CPU forwards nothing.
func (g *polyGen) spill(z reg.VecVirtual, at int) {
	VMOVDQA64(z.AsY(), g.at(at))
	VEXTRACTI64X4(U8(1), z, g.at(at+vec/2))
}

func (g *polyGen) maskedRow() (w words) {
	var rows [8]reg.VecVirtual
	for i := range rows {
		rows[i] = ZMM()
		k, a := K(), GP64()
		KMOVQ(g.at(scratchMask+8*i), k)
		MOVQ(g.at(scratchAddr+8*i), a)
		VMOVDQU8_Z(Mem{Base: a}, k, rows[i])
	}
	for half := range 2 {
		lo, hi := interleave(pairRows(rows, half))
		for i := range 2 {
			w[2*half+i].lo, w[2*half+i].hi = lo[i], hi[i]
		}
	}
	return w
}

// full does the rows that lie within every lane's text.
func (g *polyGen) full(l reg.GPVirtual, h limbs, off reg.VecVirtual) {
	n, at := GP64(), GP64()
	MOVQ(Mem{Base: l, Disp: lanesFull}, n)
	TESTQ(n, n)
	JE(LabelRef("last"))
	text := g.addresses(off)
	XORQ(at, at)
	Label("full")
	p := product{}
	for k := range 3 {
		p.lo[k], p.hi[k] = ZMM(), ZMM()
		VMOVDQA64(g.at(scratchInit+2*k*vec), p.lo[k])
		VMOVDQA64(g.at(scratchInit+(2*k+1)*vec), p.hi[k])
	}
	for half := 1; half >= 0; half-- {
		lo, hi := interleave(loadPairs(func(i int) Mem { return Mem{Base: text[i], Index: at, Scale: 1, Disp: 32 * half} }))
		for i := 1; i >= 0; i-- {
			m := g.split(lo[i], hi[i])
			if half+i == 0 {
				add(m, h)
			}
			g.addMul(p, m, Mem{Base: g.main, Disp: (2*half + i) * powerSize})
		}
	}
	g.reduce(p, h)
	ADDQ(Mem{Base: l, Disp: lanesStride}, at)
	DECQ(n)
	JNE(LabelRef("full"))
	z := ZMM()
	VPBROADCASTQ(at, z)
	VPADDQ(z, off, off)
	Label("last")
}

// addresses loads where every lane's row begins.
func (g *polyGen) addresses(off reg.VecVirtual) (text [8]reg.GPVirtual) {
	z := ZMM()
	VPADDQ(g.at(scratchText), off, z)
	g.spill(z, scratchAddr)
	for i := range text {
		text[i] = GP64()
		MOVQ(g.at(scratchAddr+8*i), text[i])
	}
	return text
}

// gather leaves the sum of a message's lanes in each of them.
func (g *polyGen) gather(l reg.GPVirtual, h limbs) {
	for i := range 3 {
		CMPQ(Mem{Base: l, Disp: lanesSplit}, U8(1<<i))
		JE(LabelRef("gathered"))
		index := ZMM()
		VPXORQ(g.numbers, g.broadcast(1<<i), index)
		for _, x := range h {
			z := ZMM()
			VPERMQ(x, index, z)
			VPADDQ(z, x, x)
		}
	}
	Label("gathered")
}

// finish reduces fully modulo 2^130-5, adds s modulo 2^128 and stores the tags.
func (g *polyGen) finish(l reg.GPVirtual, h limbs) {
	carry := ZMM()
	g.carry(h, carry)
	VPSRLQ(U8(42), h[2], carry)
	VPANDQ(g.mask42, h[2], h[2])
	VPMADD52LUQ(g.c5, carry, h[0])
	// h is now little above 2^130. If h+5 reaches 2^130, the modulus is subtracted: by adding 5 and dropping bit 130.
	VPADDQ(g.c5, h[0], carry)
	VPSRLQ(U8(44), carry, carry)
	VPADDQ(h[1], carry, carry)
	VPSRLQ(U8(44), carry, carry)
	VPADDQ(h[2], carry, carry)
	VPSRLQ(U8(42), carry, carry)
	VPMADD52LUQ(g.c5, carry, h[0])
	g.carry(h, carry) // bit 130 falls out of the tag
	g.tags(l, h)
}

// carry makes limbs 0 and 1 exactly 44 bits wide.
func (g *polyGen) carry(h limbs, c reg.VecVirtual) {
	for i := range 2 {
		VPSRLQ(U8(44), h[i], c)
		VPANDQ(g.mask44, h[i], h[i])
		VPADDQ(c, h[i+1], h[i+1])
	}
}

func (g *polyGen) tags(l reg.GPVirtual, h limbs) {
	lo, hi, t, one, k := ZMM(), ZMM(), ZMM(), g.broadcast(1), K()
	VPSLLQ(U8(44), h[1], lo)
	VPORQ(h[0], lo, lo)
	VPSRLQ(U8(20), h[1], hi)
	VPSLLQ(U8(24), h[2], t)
	VPORQ(t, hi, hi)
	VPADDQ(g.at(scratchPad), lo, lo)
	VPADDQ(g.at(scratchPad+vec), hi, hi)
	VPCMPUQ(U8(1), g.at(scratchPad), lo, k) // lo < s: it wrapped
	VPADDQ(one, hi, k, hi)
	KXORQ(k, k, k)
	even, odd := ZMM(), ZMM()
	VPUNPCKLQDQ(hi, lo, even)
	VPUNPCKHQDQ(hi, lo, odd)
	for i, job := range jobs(l) {
		VEXTRACTI64X2(U8(i/2), []reg.VecVirtual{even, odd}[i%2], Mem{Base: job, Disp: jobTag})
	}
}

// wipe clears the scratch and every vector register. The masks that are left depend on lengths alone.
func (g *polyGen) wipe() {
	z := ZMM()
	zero(z)
	clear := func(begin, end int) {
		for at := begin; at < end; at += vec {
			VMOVDQA64(z, g.at(at))
		}
	}
	CMPQ(g.main, g.base)
	JE(LabelRef("unsplit"))
	clear(scratchMain, scratchMain+tableSize)
	Label("unsplit")
	clear(scratchLast, scratchLast+tableSize)
	clear(scratchInit, scratchInit+6*vec)
	clear(scratchPad, scratchPad+2*vec)
	VZEROALL()
	for _, z := range []reg.VecPhysical{
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	} {
		zero(z)
	}
}
