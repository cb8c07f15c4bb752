// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in polyQuad; TestAssemblyMatchesLaneLayout compares them with the Go types.
const (
	quadOff  = 32
	quadLead = 64
	quadFull = 72
	quadSkip = 80
)

// The stack scratch, 32-byte aligned.
const (
	vec256   = 32
	power256 = 9 * vec256 // r0, …, r4, 5*r1, …, 5*r4

	quadPowers = 0                       // r^4, r^3, r^2, r
	quadSum    = quadPowers + 4*power256 // five limbs
	quadPad    = quadSum + 5*vec256      // s, added to the result
	quadOffs   = quadPad + 2*vec256      // of the lanes' rows in their texts
	quadEnds   = quadOffs + vec256       // where the whole blocks of each text end
	quadShift  = quadEnds + vec256       // from an offset at or behind that end to its block in quadStage
	quadStage  = quadShift + vec256      // of each lane: the last bytes, padded, if they fill no block, and the block of lengths
	quadZeros  = quadStage + 4*vec256
	quadSize   = quadZeros + vec256
	quadFrame  = quadSize + vec256
)

type quadGen struct {
	values Mem
	quad   reg.GPVirtual
	base   reg.GPVirtual // scratch
	mask   reg.VecVirtual
	text   [4]reg.GPVirtual
}

func (g *quadGen) at(off int) Mem { return Mem{Base: g.base, Disp: off} }

// zero256 clears y. Avo takes VPXOR's inputs for read even when they cancel.
func zero256(y Op) {
	Instruction(&ir.Instruction{Opcode: "VPXOR", Operands: []Op{y, y, y}, Outputs: []Op{y}, ISA: []string{"AVX2"}})
}

// quadConstants are vectors of four equal quadwords in memory.
var quadConstants = []uint64{
	1<<26 - 1, 1 << 24, 5, 64, 1 << 63, ^uint64(0), ^uint64(16), ^uint64(32), ^uint64(48), 0x0ffffffc0fffffff, 0x0ffffffc0ffffffc,
}

func (g *quadGen) constant(v uint64) Mem {
	for i, c := range quadConstants {
		if c == v {
			return g.values.Offset(vec256 * i)
		}
	}
	panic("quadConstants lacks a number")
}

// poly256 emits polyLanes256, which computes the tags of up to four messages.
func poly256() {
	ConstraintExpr("!purego")
	g := &quadGen{}
	g.values = GLOBL("quadConstants", RODATA|NOPTR)
	for i, v := range quadConstants {
		for j := range 4 {
			DATA(vec256*i+8*j, U64(v))
		}
	}
	TEXT("polyLanes256", 0, "func(q *byte)")
	g.quad = Load(Param("q"), GP64()).(reg.GPVirtual)
	frame := AllocLocal(quadFrame)
	g.base = GP64()
	LEAQ(frame.Offset(vec256-1), g.base)
	ANDQ(I8(-vec256), g.base)
	g.mask = YMM()
	VMOVDQU(g.constant(1<<26-1), g.mask)
	g.stage()
	g.keys()
	g.table()
	g.rows()
	g.finish()
	g.wipe()
	RET()
}

// job loads the pointer of a lane's job.
func (g *quadGen) job(i int) reg.GPVirtual {
	p := GP64()
	MOVQ(Mem{Base: g.quad, Disp: 8 * i}, p)
	return p
}

// stage puts the blocks that are not in the texts to the scratch, and where all blocks are.
func (g *quadGen) stage() {
	y := YMM()
	zero256(y)
	VMOVDQA(y, g.at(quadZeros))
	for i := range 4 {
		VMOVDQA(y, g.at(quadStage+vec256*i))
		g.stageLane(i)
	}
	VMOVDQU(Mem{Base: g.quad, Disp: quadOff}, y)
	VMOVDQA(y, g.at(quadOffs))
}

func (g *quadGen) stageLane(i int) {
	job, n, left, from, to := g.job(i), GP64(), GP64(), GP64(), GP64()
	g.text[i] = GP64()
	MOVQ(Mem{Base: job, Disp: jobText}, g.text[i])
	MOVQ(Mem{Base: job, Disp: jobN}, n)
	MOVQ(n, left)
	ANDQ(U8(15), left)
	MOVQ(n, from)
	SUBQ(left, from)
	MOVQ(from, g.at(quadEnds+8*i))
	LEAQ(g.at(quadStage+vec256*i), to)
	shift := GP64()
	MOVQ(to, shift)
	SUBQ(from, shift)
	MOVQ(shift, g.at(quadShift+8*i))
	whole := fmt.Sprintf("whole%d", i)
	TESTQ(left, left)
	JZ(LabelRef(whole))
	ADDQ(g.text[i], from)
	copyVirtual(fmt.Sprintf("tail%d_", i), from, to, left)
	LEAQ(g.at(quadStage+vec256*i+16), to)
	Label(whole)
	MOVQ(n, Mem{Base: to, Disp: 8})
}

// copyVirtual copies n bytes, fewer than 16.
func copyVirtual(name string, from, to, n reg.GPVirtual) {
	t := GP64()
	for _, size := range []int{8, 4, 2, 1} {
		done := fmt.Sprint(name, size)
		TESTQ(U32(size), n)
		JZ(LabelRef(done))
		src, dst := Mem{Base: from}, Mem{Base: to}
		switch size {
		case 8:
			MOVQ(src, t)
			MOVQ(t, dst)
		case 4:
			MOVLQZX(src, t)
			MOVL(t.As32(), dst)
		case 2:
			MOVWQZX(src, t)
			MOVW(t.As16(), dst)
		case 1:
			MOVBQZX(src, t)
			MOVB(t.As8(), dst)
		}
		ADDQ(U8(size), from)
		ADDQ(U8(size), to)
		Label(done)
	}
}

// keys clamps r (RFC 8439 section 2.5) to the table's first power and keeps s.
func (g *quadGen) keys() {
	var x [4]reg.VecVirtual
	for i := range x {
		x[i] = YMM()
		VMOVDQU(Mem{Base: g.job(i)}, x[i])
	}
	for half, unpack := range []func(...Op){VPUNPCKLQDQ, VPUNPCKHQDQ} {
		a, b, s := YMM(), YMM(), YMM()
		unpack(x[1], x[0], a)
		unpack(x[3], x[2], b)
		VPERM2I128(U8(0x31), b, a, s)
		VMOVDQA(s, g.at(quadPad+half*vec256))
		VPERM2I128(U8(0x20), b, a, a)
		VPAND(g.constant([]uint64{0x0ffffffc0fffffff, 0x0ffffffc0ffffffc}[half]), a, a)
		VMOVDQA(a, g.at(quadSum+half*vec256))
	}
	lo, hi := YMM(), YMM()
	VMOVDQA(g.at(quadSum), lo)
	VMOVDQA(g.at(quadSum+vec256), hi)
	g.store(g.split(lo, hi), power(1))
}

// rows does all rows of 64 bytes of each lane. The first and the last may lie in part outside some text.
func (g *quadGen) rows() {
	n := GP64()
	y := YMM()
	zero256(y)
	for i := range 5 {
		VMOVDQA(y, g.at(quadSum+i*vec256))
	}
	MOVQ(Mem{Base: g.quad, Disp: quadLead}, n)
	TESTQ(n, n)
	JZ(LabelRef("led"))
	Label("lead")
	g.row("lead")
	DECQ(n)
	JNZ(LabelRef("lead"))
	Label("led")
	g.full()
	g.row("last")
}

// full does the rows that lie within every lane's text.
func (g *quadGen) full() {
	n := GP64()
	MOVQ(Mem{Base: g.quad, Disp: quadFull}, n)
	TESTQ(n, n)
	JZ(LabelRef("last"))
	var at [4]reg.GPVirtual
	for i := range at {
		at[i] = GP64()
		MOVQ(g.at(quadOffs+8*i), at[i])
		ADDQ(g.text[i], at[i])
	}
	Label("full")
	d := newQuadLimbs()
	for b := 3; b >= 0; b-- {
		lo, hi := g.transpose(func(i int) Mem { return Mem{Base: at[i], Disp: 16 * b} })
		m := g.split(lo, hi)
		VPOR(g.constant(1<<24), m[4], m[4])
		g.block(d, m, b)
	}
	g.sum(d)
	for i := range at {
		ADDQ(U8(64), at[i])
	}
	DECQ(n)
	JNZ(LabelRef("full"))
	y := YMM()
	VPBROADCASTQ(Mem{Base: g.quad, Disp: quadFull}, y)
	VPSLLQ(U8(6), y, y)
	VPADDQ(g.at(quadOffs), y, y)
	VMOVDQA(y, g.at(quadOffs))
	Label("last")
}

// transpose reads a block of each lane and returns their words in the order of the lanes.
func (g *quadGen) transpose(lane func(i int) Mem) (lo, hi reg.VecVirtual) {
	even, odd := YMM(), YMM()
	VBROADCASTI128(lane(0), even)
	VINSERTI128(U8(1), lane(2), even, even)
	VBROADCASTI128(lane(1), odd)
	VINSERTI128(U8(1), lane(3), odd, odd)
	lo, hi = YMM(), YMM()
	VPUNPCKLQDQ(odd, even, lo)
	VPUNPCKHQDQ(odd, even, hi)
	return lo, hi
}

// block adds block b of a row, from the last to the first, which carries the sum so far.
func (g *quadGen) block(d, m quadLimbs, b int) {
	if b == 0 {
		for i := range m {
			VPADDQ(g.at(quadSum+i*vec256), m[i], m[i])
		}
	}
	g.addMul(d, m, power(4-b), b == 3)
}

func (g *quadGen) sum(d quadLimbs) {
	g.reduce(d)
	for i := range d {
		VMOVDQA(d[i], g.at(quadSum+i*vec256))
	}
}

// row does a row of which any part may lie outside a text: absent blocks are zero and lack bit 128. The first quadSkip
// blocks are absent in all lanes, and are left out: then there is no sum so far either.
func (g *quadGen) row(name string) {
	skip := GP64()
	MOVQ(Mem{Base: g.quad, Disp: quadSkip}, skip)
	d := newQuadLimbs()
	for b := 3; b >= 0; b-- {
		if b < 3 {
			CMPQ(skip, U8(b))
			JA(LabelRef(name + "Summed"))
		}
		lo, hi := g.transpose(g.find(b))
		m := g.split(lo, hi)
		bit := YMM()
		VMOVDQA(g.at(quadOffs), bit)
		VPCMPGTQ(g.constant(^uint64(16*b)), bit, bit) // off > -16*b-1
		VPAND(g.constant(1<<24), bit, bit)
		VPOR(bit, m[4], m[4])
		g.block(d, m, b)
	}
	Label(name + "Summed")
	g.sum(d)
	y := YMM()
	VMOVDQA(g.at(quadOffs), y)
	VPADDQ(g.constant(64), y, y)
	VMOVDQA(y, g.at(quadOffs))
	zero := GP64()
	XORQ(zero, zero)
	MOVQ(zero, Mem{Base: g.quad, Disp: quadSkip})
}

// find computes where block b of each lane's row is: in the zeros, the text or the scratch.
func (g *quadGen) find(b int) func(i int) Mem {
	return func(i int) Mem {
		off, at, zeros := GP64(), GP64(), GP64()
		MOVQ(g.at(quadOffs+8*i), off)
		if b > 0 {
			ADDQ(U8(16*b), off)
		}
		MOVQ(off, at)
		ADDQ(g.text[i], at)
		MOVQ(g.at(quadShift+8*i), zeros)
		ADDQ(off, zeros)
		CMPQ(off, g.at(quadEnds+8*i))
		CMOVQGE(zeros, at)
		LEAQ(g.at(quadZeros), zeros)
		TESTQ(off, off)
		CMOVQLT(zeros, at)
		return Mem{Base: at}
	}
}

// wipe clears the scratch and every vector register.
func (g *quadGen) wipe() {
	y := YMM()
	zero256(y)
	for at := 0; at < quadSize; at += vec256 {
		VMOVDQA(y, g.at(at))
	}
	VZEROALL()
}
