// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	line = 64 // bytes of a vector and of a cache line
	turn = 2 * line
)

// sums adds up 64-bit words in the lanes of a vector without losing a carry. It keeps the words'
// sum modulo 2^64 in all, and the sum of their upper halves in high. The sum of the lower halves
// is all less the upper halves. That is three instructions for a vector, where widening 32-bit
// words takes four.
type sums struct {
	vector    func() reg.VecVirtual // ZMM or YMM
	all, high reg.VecVirtual
}

func newSums512() sums { return newSums(ZMM, "VPXORQ", "AVX512F") }
func newSums256() sums { return newSums(YMM, "VPXOR", "AVX2") }

// newSums clears the sums. Avo takes the inputs of the exclusive or for read even when they cancel.
func newSums(vector func() reg.VecVirtual, xor, isa string) sums {
	s := sums{vector, vector(), vector()}
	for _, v := range []Op{s.all, s.high} {
		Instruction(&ir.Instruction{Opcode: xor, Operands: []Op{v, v, v}, Outputs: []Op{v}, ISA: []string{isa}})
	}
	return s
}

func (s sums) add(z reg.VecVirtual) {
	upper := s.vector()
	VPSRLQ(U8(32), z, upper)
	VPADDQ(z, s.all, s.all)
	VPADDQ(upper, s.high, s.high)
}

func (s sums) addLine(m Mem) {
	z := ZMM()
	VMOVDQA64(m, z)
	s.add(z)
}

// addPart adds the bytes whose bits in mask are set.
func (s sums) addPart(m Mem, mask reg.GPVirtual) {
	z, k := ZMM(), K()
	KMOVQ(mask, k)
	VMOVDQU8_Z(m, k, z)
	s.add(z)
}

// total is the sum of both halves over both s and t. It wraps for 16 GiB or more.
func (s sums) total(t sums) reg.GPVirtual {
	VPADDQ(t.all, s.all, s.all)
	VPADDQ(t.high, s.high, s.high)
	upper := s.vector()
	VPSLLQ(U8(32), s.high, upper)
	VPSUBQ(upper, s.all, s.all)
	VPADDQ(s.high, s.all, s.all)
	return across(s.all)
}

// across adds up the lanes of a vector.
func across(v reg.VecVirtual) reg.GPVirtual {
	y, x, w, sum := v, XMM(), XMM(), GP64()
	if v.Size() == line {
		y = YMM()
		VEXTRACTI64X4(U8(1), v, y)
		VPADDQ(y, v.AsY(), y)
	}
	VEXTRACTI128(U8(1), y, x)
	VPADDQ(x, y.AsX(), x)
	VPSRLDQ(U8(8), x, w)
	VPADDQ(w, x, x)
	VMOVQ(x, sum)
	return sum
}

// words256 adds vectors from the first byte on, as many as fill lines. n is a multiple of a line, and not zero. On CPUs that
// have AVX2 alone, unaligned loads cost less than masks.
func words256() {
	TEXT("words256", NOSPLIT, "func(p *byte, n int) uint64")
	p := Load(Param("p"), GP64()).(reg.GPVirtual)
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	even, odd := newSums256(), newSums256()
	Label("lines")
	for i, s := range []sums{even, odd} {
		v := YMM()
		VMOVDQU(Mem{Base: p, Disp: i * line / 2}, v)
		s.add(v)
	}
	ADDQ(U8(line), p)
	SUBQ(U8(line), n)
	JNE(LabelRef("lines"))
	sum := even.total(odd)
	VZEROUPPER()
	Store(sum, ReturnIndex(0))
	RET()
}

// words512 reads whole cache lines, each of which has a byte of the text. A line is never in two
// pages, so a load of part of it neither faults nor takes the slow path of loads that might.
func words512() {
	TEXT("words512", NOSPLIT, "func(p *byte, n int) uint64")
	p := Load(Param("p"), GP64()).(reg.GPVirtual)
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	ones, skip := GP64(), GP64()
	MOVQ(I32(-1), ones)
	MOVQ(p, skip)
	ANDQ(U8(line-1), skip)
	ANDQ(I8(-line), p)
	even, odd := newSums512(), newSums512()
	first(even, p, n, ones, skip)
	whole(even, odd, p, n)
	last(even, odd, p, n, ones)
	sum := even.total(odd)
	swap(sum, skip)
	VZEROUPPER()
	Store(sum, ReturnIndex(0))
	RET()
}

// first adds the text's part of its first line. Then p is at the next and n what is left, at least 1.
func first(s sums, p, n, ones, skip reg.GPVirtual) {
	mask := GP64()
	SHLXQ(skip, ones, mask)
	s.addPart(Mem{Base: p}, mask)
	ADDQ(U8(line), p)
	LEAQ(Mem{Base: n, Index: skip, Scale: 1, Disp: -line}, n)
}

// whole adds pairs of lines until 1 to 128 bytes are left.
func whole(even, odd sums, p, n reg.GPVirtual) {
	SUBQ(U32(turn+1), n)
	JLT(LabelRef("last"))
	Label("whole")
	even.addLine(Mem{Base: p})
	odd.addLine(Mem{Base: p, Disp: line})
	ADDQ(U32(turn), p)
	SUBQ(U32(turn), n)
	JGE(LabelRef("whole"))
	Label("last")
	ADDQ(U32(turn+1), n)
}

// last adds the rest. Where it is all in one line, that line stands in for the other, with no byte of it.
func last(even, odd sums, p, n, ones reg.GPVirtual) {
	mask, none, second := GP64(), GP64(), GP64()
	BZHIQ(n, ones, mask) // of 64 and more takes all bits
	even.addPart(Mem{Base: p}, mask)
	XORQ(none, none)
	LEAQ(Mem{Base: p, Disp: line}, second)
	SUBQ(U8(line), n)
	CMOVQLE(none, n)
	CMOVQLE(p, second)
	mask = GP64()
	BZHIQ(n, ones, mask)
	odd.addPart(Mem{Base: second}, mask)
}

// swap makes up for a text that begins at an odd address, whose bytes all stood in each other's
// places. Rotating by a byte is multiplying by 2^8 modulo 2^64-1, which 0xffff divides.
func swap(sum, skip reg.GPVirtual) {
	ANDL(U8(1), skip.As32())
	SHLL(U8(3), skip.As32())
	MOVQ(skip, reg.RCX)
	ROLQ(reg.CL, sum)
}
