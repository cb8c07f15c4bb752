// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quadLimbs is a number in each of four lanes: five limbs of 26 bits and a little more.
type quadLimbs [5]reg.VecVirtual

func newQuadLimbs() (x quadLimbs) {
	for i := range x {
		x[i] = YMM()
	}
	return x
}

// table computes the powers, the highest first.
func (g *quadGen) table() {
	for _, n := range []int{2, 3, 4} {
		d := newQuadLimbs()
		g.addMul(d, g.load(power((n+1)/2)), power(n/2), true)
		g.reduce(d)
		g.store(d, power(n))
	}
}

func power(n int) int { return quadPowers + (4-n)*power256 }

// store puts a power and its multiples by 5 to the scratch.
func (g *quadGen) store(p quadLimbs, at int) {
	for i := range p {
		VMOVDQA(p[i], g.at(at+i*vec256))
		if i > 0 {
			t := YMM()
			VPMULUDQ(g.constant(5), p[i], t)
			VMOVDQA(t, g.at(at+(i+4)*vec256))
		}
	}
}

func (g *quadGen) load(at int) quadLimbs {
	p := newQuadLimbs()
	for i := range p {
		VMOVDQA(g.at(at+i*vec256), p[i])
	}
	return p
}

// split turns a block's words into limbs; bit 128 is not set. It overwrites both.
func (g *quadGen) split(lo, hi reg.VecVirtual) quadLimbs {
	m := quadLimbs{lo, YMM(), YMM(), YMM(), hi}
	VPSLLQ(U8(12), hi, m[2])
	VPSRLQ(U8(52), lo, m[3])
	VPOR(m[3], m[2], m[2])
	VPAND(g.mask, m[2], m[2])
	VPSRLQ(U8(26), lo, m[1])
	VPAND(g.mask, m[1], m[1])
	VPSRLQ(U8(14), hi, m[3])
	VPAND(g.mask, m[3], m[3])
	VPSRLQ(U8(40), hi, m[4])
	VPAND(g.mask, lo, m[0])
	return m
}

// addMul adds a*b to d, where b is a power in the scratch, or begins d with it. Column k of the
// schoolbook product is the sum of a[i]*b[j] with i+j = k. Columns 5 and up fold down with the
// factor 5, since 2^130 = 5.
func (g *quadGen) addMul(d, a quadLimbs, b int, begin bool) {
	for i := range 5 {
		for k := range 5 {
			j := k - i
			if j < 0 {
				j += 5 + 4
			}
			if begin && i == 0 {
				VPMULUDQ(g.at(b+j*vec256), a[i], d[k])
				continue
			}
			t := YMM()
			VPMULUDQ(g.at(b+j*vec256), a[i], t)
			VPADDQ(t, d[k], d[k])
		}
	}
}

// reduce carries once around. These bounds hold for the four products of a row. Limbs of blocks
// are below 2^27+2^13 with the sum added, and limbs of powers below 2^27. So columns are below
// 4*(2^28*(2^27+4*5*2^27)) < 2^62, and their carries times 5 fit 64 bits. Out come limbs below
// 2^26, the second and the last below 2^26+2^13.
func (g *quadGen) reduce(d quadLimbs) {
	carry := func(from, to int) {
		t := YMM()
		VPSRLQ(U8(26), d[from], t)
		VPAND(g.mask, d[from], d[from])
		VPADDQ(t, d[to], d[to])
		if to == 0 {
			VPSLLQ(U8(2), t, t)
			VPADDQ(t, d[to], d[to])
		}
	}
	for _, c := range [][2]int{{3, 4}, {0, 1}, {4, 0}, {1, 2}, {2, 3}, {0, 1}, {3, 4}} {
		carry(c[0], c[1])
	}
}

// finish reduces fully modulo 2^130-5, adds s modulo 2^128 and stores the tags.
func (g *quadGen) finish() {
	h := g.load(quadSum)
	g.carry(h)
	t := YMM()
	VPSRLQ(U8(26), h[4], t)
	VPAND(g.mask, h[4], h[4])
	g.addFive(h, t)
	g.carry(h)
	// h is now little above 2^130. If h+5 reaches 2^130, the modulus is subtracted: by adding 5 and dropping bit 130.
	VPADDQ(g.constant(5), h[0], t)
	for i := 1; i < 5; i++ {
		VPSRLQ(U8(26), t, t)
		VPADDQ(h[i], t, t)
	}
	VPSRLQ(U8(26), t, t)
	g.addFive(h, t)
	g.carry(h) // bit 130 falls out of the tag
	g.tags(h)
}

// addFive adds 5*n to h, and overwrites n.
func (g *quadGen) addFive(h quadLimbs, n reg.VecVirtual) {
	VPADDQ(n, h[0], h[0])
	VPSLLQ(U8(2), n, n)
	VPADDQ(n, h[0], h[0])
}

// carry makes limbs 0 to 3 exactly 26 bits wide.
func (g *quadGen) carry(h quadLimbs) {
	for i := range 4 {
		t := YMM()
		VPSRLQ(U8(26), h[i], t)
		VPAND(g.mask, h[i], h[i])
		VPADDQ(t, h[i+1], h[i+1])
	}
}

func (g *quadGen) tags(h quadLimbs) {
	lo, hi, t := YMM(), YMM(), YMM()
	VPSLLQ(U8(26), h[1], lo)
	VPOR(h[0], lo, lo)
	VPSLLQ(U8(52), h[2], t)
	VPOR(t, lo, lo)
	VPSRLQ(U8(12), h[2], hi)
	VPSLLQ(U8(14), h[3], t)
	VPOR(t, hi, hi)
	VPSLLQ(U8(40), h[4], t)
	VPOR(t, hi, hi)
	VPADDQ(g.at(quadPad), lo, lo)
	VPADDQ(g.at(quadPad+vec256), hi, hi)
	// Where lo < s it wrapped: unsigned, as a comparison of signed numbers with the sign bits flipped.
	s := YMM()
	VMOVDQA(g.at(quadPad), s)
	VPXOR(g.constant(1<<63), s, s)
	VPXOR(g.constant(1<<63), lo, t)
	VPCMPGTQ(t, s, t)
	VPSUBQ(t, hi, hi)
	even, odd := YMM(), YMM()
	VPUNPCKLQDQ(hi, lo, even)
	VPUNPCKHQDQ(hi, lo, odd)
	for i := range 4 {
		x := []reg.VecVirtual{even, odd}[i%2]
		if tag := (Mem{Base: g.job(i), Disp: jobTag}); i < 2 {
			VMOVDQU(x.AsX(), tag)
		} else {
			VEXTRACTI128(U8(1), x, tag)
		}
	}
}
