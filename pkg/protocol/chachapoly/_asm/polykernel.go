// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// poly emits polyLanes512, which computes the tags of up to eight messages.
func poly() {
	ConstraintExpr("!purego")
	g := &polyGen{}
	g.data()
	TEXT("polyLanes512", 0, "func(l *byte)")
	l := Load(Param("l"), GP64()).(reg.GPVirtual)
	frame := AllocLocal(scratchFrame)
	g.base = GP64()
	LEAQ(frame.Offset(vec-1), g.base)
	ANDQ(I8(-vec), g.base)
	g.constants()

	split := GP64()
	MOVQ(Mem{Base: l, Disp: lanesSplit}, split)
	g.texts(l)
	g.keys(l)
	g.table(split)

	h := newLimbs()
	for i := range h {
		zero(h[i])
	}
	off := ZMM()
	VMOVDQU64(Mem{Base: l, Disp: lanesOff}, off)
	g.lead(l, h, off)
	g.full(l, h, off)
	g.row(h, off, g.base, Mem{Base: l, Disp: lanesEnd})

	g.gather(l, h)
	g.finish(l, h)
	g.wipe()
	RET()
}

// jobs loads the pointer of every lane's job.
func jobs(l reg.GPVirtual) (p [8]reg.GPVirtual) {
	for i := range p {
		p[i] = GP64()
		MOVQ(Mem{Base: l, Disp: 8 * i}, p[i])
	}
	return p
}

// keys clamps r (RFC 8439 section 2.5) to the table's first power and keeps s.
func (g *polyGen) keys(l reg.GPVirtual) {
	job := jobs(l)
	lo, hi := interleave(loadPairs(func(i int) Mem { return Mem{Base: job[i]} }))
	VMOVDQA64(lo[1], g.at(scratchPad))
	VMOVDQA64(hi[1], g.at(scratchPad+vec))
	VPANDQ(g.broadcast(0x0ffffffc0fffffff), lo[0], lo[0])
	VPANDQ(g.broadcast(0x0ffffffc0ffffffc), hi[0], hi[0])
	g.store(g.split(lo[0], hi[0]), scratchLast+3*powerSize)
}

// store puts a power and its multiples by 20 to the scratch.
func (g *polyGen) store(p limbs, at int) {
	c20 := g.broadcast(20)
	for i := range p {
		VMOVDQA64(p[i], g.at(at+i*vec))
		if i > 0 {
			s := ZMM()
			zero(s)
			VPMADD52LUQ(c20, p[i], s)
			VMOVDQA64(s, g.at(at+(i+2)*vec))
		}
	}
}

func (g *polyGen) load(at int) limbs {
	p := newLimbs()
	for i := range p {
		VMOVDQA64(g.at(at+i*vec), p[i])
	}
	return p
}

func (g *polyGen) mul(a limbs, b int) limbs {
	p, out := g.empty(), newLimbs()
	g.addMul(p, a, g.at(b))
	g.reduce(p, out)
	return out
}

// table computes the powers of every lane, the highest first. With split = 1 all rows use r^4 to
// r. Otherwise lane j of a message ends with these powers times r^(4(split-1-j)). Its other rows
// use the powers that lane 0 ends with.
func (g *polyGen) table(split reg.GPVirtual) {
	at := func(n int) int { return scratchLast + (4-n)*powerSize }
	g.store(g.mul(g.load(at(1)), at(1)), at(2))
	square := g.load(at(2))
	g.store(g.mul(square, at(1)), at(3))
	g.store(g.mul(square, at(2)), at(4))
	g.main = GP64()
	MOVQ(g.base, g.main)
	CMPQ(split, U8(1))
	JE(LabelRef("initial"))
	g.ownPowers(split, at)
	g.commonPowers(split)
	ADDQ(U32(scratchMain), g.main)
	Label("initial")
	g.initial()
}

// ownPowers multiplies the powers by r^(4(split-1-j)). scratchMain serves as room for r^4, r^8 and r^16.
func (g *polyGen) ownPowers(split reg.GPVirtual, at func(int) int) {
	square, factor, one := scratchMain, newLimbs(), g.broadcast(1)
	r4 := g.load(at(4))
	g.store(r4, square)
	g.choose(0x55, r4, factor, one)
	for i, lanes := range []uint64{0x33, 0x0f} {
		CMPQ(split, U8(2<<i))
		JE(LabelRef("factor"))
		next := square + powerSize
		g.store(g.mul(g.load(square), square), next)
		square = next
		k := mask(lanes)
		for j, f := range g.mul(factor, square) {
			VMOVDQA64(f, k, factor[j])
		}
	}
	Label("factor")
	g.store(factor, scratchMain)
	for n := 1; n <= 4; n++ {
		g.store(g.mul(g.load(at(n)), scratchMain), at(n))
	}
}

// choose sets out to a in the given lanes and to 1 in the others.
func (g *polyGen) choose(lanes uint64, a, out limbs, one reg.VecVirtual) {
	k := mask(lanes)
	VMOVDQA64(one, out[0])
	VMOVDQA64(a[0], k, out[0])
	VMOVDQA64_Z(a[1], k, out[1])
	VMOVDQA64_Z(a[2], k, out[2])
}

func mask(lanes uint64) reg.OpmaskVirtual {
	k, r := K(), GP64()
	MOVQ(U64(lanes), r)
	KMOVQ(r, k)
	return k
}

// commonPowers copies lane 0's powers of each message to all its lanes: lane i takes the powers of
// lane i &^ (split-1).
func (g *polyGen) commonPowers(split reg.GPVirtual) {
	index, low := ZMM(), ZMM()
	VMOVDQU64(g.numbers, index)
	VPBROADCASTQ(split, low)
	VPSUBQ(g.broadcast(1), low, low)
	VPANDNQ(index, low, index)
	for v := range 4 * 5 {
		z := ZMM()
		VPERMQ(g.at(scratchLast+v*vec), index, z)
		VMOVDQA64(z, g.at(scratchMain+v*vec))
	}
}

// initial computes what bit 128 of the four blocks of a row adds to its product, with which the sum of a full row starts.
func (g *polyGen) initial() {
	sum := newLimbs()
	for i := range sum {
		VMOVDQA64(Mem{Base: g.main, Disp: i * vec}, sum[i])
		for n := 1; n < 4; n++ {
			VPADDQ(Mem{Base: g.main, Disp: n*powerSize + i*vec}, sum[i], sum[i])
		}
	}
	s, c20, bit := [2]reg.VecVirtual{ZMM(), ZMM()}, g.broadcast(20), g.broadcast(1<<40)
	for i := range s {
		zero(s[i])
		VPMADD52LUQ(c20, sum[i+1], s[i])
	}
	for k, b := range []reg.VecVirtual{s[0], s[1], sum[0]} {
		for half, mul := range []func(...Op){VPMADD52LUQ, VPMADD52HUQ} {
			z := ZMM()
			zero(z)
			mul(b, bit, z)
			VMOVDQA64(z, g.at(scratchInit+(2*k+half)*vec))
		}
	}
}

// texts collects where the messages are and how long; an absent text is replaced by any readable address.
func (g *polyGen) texts(l reg.GPVirtual) {
	for i := range 8 {
		job, text, n := GP64(), GP64(), GP64()
		MOVQ(Mem{Base: l, Disp: 8 * i}, job)
		MOVQ(Mem{Base: job, Disp: jobText}, text)
		MOVQ(Mem{Base: job, Disp: jobN}, n)
		TESTQ(text, text)
		CMOVQEQ(job, text)
		MOVQ(text, g.at(scratchText+8*i))
		MOVQ(n, g.at(scratchLen+8*i))
	}
}
