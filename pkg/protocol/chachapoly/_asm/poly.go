// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in polyLanes; TestAssemblyMatchesLaneLayout compares them with the Go type.
const (
	lanesOff    = 64
	lanesEnd    = 128
	lanesStride = 192
	lanesLead   = 200
	lanesFull   = 208
	lanesSplit  = 216
)

// The stack scratch, 64-byte aligned: two tables of powers, then vectors of one quadword per lane.
const (
	vec       = 64
	powerSize = 5 * vec // r0, r1, r2, 20*r1, 20*r2
	tableSize = 4 * powerSize

	scratchLast  = 0         // powers that end every lane's own chain
	scratchMain  = tableSize // powers between two rows of a lane
	scratchInit  = 2 * tableSize
	scratchText  = scratchInit + 6*vec
	scratchLen   = scratchText + vec
	scratchMask  = scratchLen + vec
	scratchAddr  = scratchMask + vec
	scratchPad   = scratchAddr + vec // s, added to the result
	scratchSize  = scratchPad + 2*vec
	scratchFrame = scratchSize + vec
)

// limbs is a number below 2^131 in each of the eight lanes: 44, 44 and 42 bits and a little more.
type limbs [3]reg.VecVirtual

// product holds the unreduced columns of a sum of products, low and high halves of 52-bit multiplications apart.
type product struct{ lo, hi [3]reg.VecVirtual }

// polyGen carries what every step of the kernel needs.
type polyGen struct {
	values, numbers   Mem
	base              reg.GPVirtual // scratch
	main              reg.GPVirtual // the table of rows that are not a lane's last
	mask44, mask42    reg.VecVirtual
	c5, c256, c5shl10 reg.VecVirtual
}

func newLimbs() limbs { return limbs{ZMM(), ZMM(), ZMM()} }

func (g *polyGen) at(off int) Mem { return Mem{Base: g.base, Disp: off} }

// shrd is VPSHRDQ, which avo does not know: dst = low 64 bits of (hi:lo)>>n.
func shrd(n uint8, hi, lo, dst reg.VecVirtual) {
	Instruction(&ir.Instruction{
		Opcode:   "VPSHRDQ",
		Operands: []Op{U8(n), hi, lo, dst},
		Inputs:   []Op{hi, lo},
		Outputs:  []Op{dst},
		ISA:      []string{"AVX512VBMI2"},
	})
}

// zero clears z. Avo takes VPXORQ's inputs for read even when they cancel.
func zero(z Op) {
	Instruction(&ir.Instruction{Opcode: "VPXORQ", Operands: []Op{z, z, z}, Outputs: []Op{z}, ISA: []string{"AVX512F"}})
}

// polyConstants are the values with which vectors are filled.
var polyConstants = [...]uint64{
	1, 2, 4, 5, 20, 1 << 8, 5 << 10, 1 << 40, 1<<42 - 1, 1<<44 - 1, ^uint64(vec - 1), 0,
	^uint64(15), ^uint64(31), ^uint64(47), 0x0ffffffc0fffffff, 0x0ffffffc0ffffffc,
}

// data puts the constants and the lanes' numbers 0, 1, ..., 7 into the object.
func (g *polyGen) data() {
	g.values = GLOBL("polyConstants", RODATA|NOPTR)
	for i, v := range polyConstants {
		DATA(8*i, U64(v))
	}
	g.numbers = GLOBL("polyLaneNumbers", RODATA|NOPTR)
	for i := range 8 {
		DATA(8*i, U64(i))
	}
}

// broadcast fills a vector with one of polyConstants.
func (g *polyGen) broadcast(v uint64) reg.VecVirtual {
	z, i := ZMM(), slices.Index(polyConstants[:], v)
	if i < 0 {
		panic("polyConstants lacks a number")
	}
	VPBROADCASTQ(g.values.Offset(8*i), z)
	return z
}

func (g *polyGen) constants() {
	g.mask44 = g.broadcast(1<<44 - 1)
	g.mask42 = g.broadcast(1<<42 - 1)
	g.c5 = g.broadcast(5)
	g.c256 = g.broadcast(1 << 8)
	g.c5shl10 = g.broadcast(5 << 10)
}

// empty starts a sum.
func (g *polyGen) empty() (p product) {
	for i := range 3 {
		p.lo[i], p.hi[i] = ZMM(), ZMM()
		zero(p.lo[i])
		zero(p.hi[i])
	}
	return p
}

// addMul adds a*b to p, where b is a power in memory. Column k of the schoolbook product is the
// sum of a[i]*b[j] with i+j = k. Columns 3 and 4 fold down with the factor 20, since 2^132 =
// 4*2^130 and 2^130 = 5.
func (g *polyGen) addMul(p product, a limbs, b Mem) {
	r := func(i int) Mem { return b.Offset(i * vec) }
	columns := [3][3]Mem{{r(0), r(4), r(3)}, {r(1), r(0), r(4)}, {r(2), r(1), r(0)}}
	for i := range 3 {
		for k := range 3 {
			VPMADD52LUQ(columns[k][i], a[i], p.lo[k])
			VPMADD52HUQ(columns[k][i], a[i], p.hi[k])
		}
	}
}

// reduce carries once, all limbs at the same time. These bounds hold for the four products of a
// row. The high halves of column 2 stay below 7*2^36, so that 5*2^10 times them fits 52 bits. The
// high halves of columns 0 and 1 stay below 2^42. Low halves sum to less than 2^56. Out come limbs
// below 2^44+2^17, 2^44+2^13 and 2^42+2^13.
func (g *polyGen) reduce(p product, h limbs) {
	VPMADD52LUQ(g.c5shl10, p.hi[2], p.lo[0])
	VPMADD52LUQ(g.c256, p.hi[0], p.lo[1])
	VPMADD52LUQ(g.c256, p.hi[1], p.lo[2])
	VPSRLQ(U8(44), p.lo[0], p.hi[0])
	VPSRLQ(U8(44), p.lo[1], p.hi[1])
	VPSRLQ(U8(42), p.lo[2], p.hi[2])
	VPANDQ(g.mask44, p.lo[0], h[0])
	VPANDQ(g.mask44, p.lo[1], h[1])
	VPANDQ(g.mask42, p.lo[2], h[2])
	VPADDQ(p.hi[0], h[1], h[1])
	VPADDQ(p.hi[1], h[2], h[2])
	VPMADD52LUQ(g.c5, p.hi[2], h[0])
}

// split turns a block's words into limbs; bit 128 is not set.
func (g *polyGen) split(lo, hi reg.VecVirtual) limbs {
	m := newLimbs()
	shrd(44, hi, lo, m[1])
	VPANDQ(g.mask44, lo, m[0])
	VPANDQ(g.mask44, m[1], m[1])
	VPSRLQ(U8(24), hi, m[2])
	return m
}

// words is the transposed form of a row: of each of four successive blocks the low and the high words of all lanes.
type words [4]struct{ lo, hi reg.VecVirtual }

// interleave returns the words of two blocks in the order of the lanes. Each register of x holds
// the same two blocks of two lanes: x[0] of lanes 0 and 2, x[1] of 1 and 3, x[2] of 4 and 6, x[3]
// of 5 and 7.
func interleave(x [4]reg.VecVirtual) (lo, hi [2]reg.VecVirtual) {
	for _, half := range []struct {
		unpack func(...Op)
		out    *[2]reg.VecVirtual
	}{{VPUNPCKLQDQ, &lo}, {VPUNPCKHQDQ, &hi}} {
		a, b := ZMM(), ZMM()
		half.unpack(x[1], x[0], a)
		half.unpack(x[3], x[2], b)
		half.out[0], half.out[1] = ZMM(), ZMM()
		VSHUFI64X2(U8(0x88), b, a, half.out[0])
		VSHUFI64X2(U8(0xdd), b, a, half.out[1])
	}
	return lo, hi
}

var pairs = [4][2]int{{0, 2}, {1, 3}, {4, 6}, {5, 7}}

// loadPairs reads 32 bytes of each lane.
func loadPairs(lane func(i int) Mem) (x [4]reg.VecVirtual) {
	for i, p := range pairs {
		x[i] = ZMM()
		VBROADCASTI64X4(lane(p[0]), x[i])
		VINSERTI64X4(U8(1), lane(p[1]), x[i], x[i])
	}
	return x
}

// pairRows does the same for half of rows that are in registers.
func pairRows(rows [8]reg.VecVirtual, half int) (x [4]reg.VecVirtual) {
	for i, p := range pairs {
		x[i] = ZMM()
		VSHUFI64X2(U8([]uint8{0x44, 0xee}[half]), rows[p[1]], rows[p[0]], x[i])
	}
	return x
}
